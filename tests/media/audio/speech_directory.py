"""A small model directory with what a processor of sound needs: configurations, a tokenizer, inputs of graphs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.media.described_graph import write_graph, write_tokenizer

_SPECIAL = (
    *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"),
    *("<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
_FIRST_ID = 2000
_N_FFT, _HOP = 400, 160


def make_speech_directory(folder: Path, *, seconds: int = 30, mels: int = 80, type: int = TensorProto.FLOAT) -> Path:
    """Write a directory whose model reads windows of `seconds`; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    special = [*_SPECIAL, *(f"<|{0.02 * step:.2f}|>" for step in range(50 * seconds + 1))]
    common = {"head_size": 8, "hidden_size": 8, "num_attention_heads": 1, "num_hidden_layers": 1}
    model: dict[str, Any] = {
        "bos_token_id": _FIRST_ID,
        "context_length": 448,
        "eos_token_id": _FIRST_ID,
        "pad_token_id": _FIRST_ID,
        "type": "whisper",
        "vocab_size": _FIRST_ID + len(special),
        "decoder": {
            **common,
            "filename": "decoder.onnx",
            # Would fail on a machine without such a device, if the processor used it.
            "session_options": {"provider_options": [{"cuda": {}}]},
            "inputs": {
                "input_ids": "input_ids",
                "past_key_names": "past_key_self_%d",
                "past_value_names": "past_value_self_%d",
                "cross_past_key_names": "past_key_cross_%d",
                "cross_past_value_names": "past_value_cross_%d",
            },
            "outputs": {
                "logits": "logits",
                "present_key_names": "present_key_self_%d",
                "present_value_names": "present_value_self_%d",
            },
            "num_key_value_heads": 1,
        },
        "encoder": {
            **common,
            "filename": "encoder.onnx",
            "session_options": {"provider_options": [{"cuda": {}}]},
            "inputs": {"audio_features": "audio_features"},
            "outputs": {
                "encoder_hidden_states": "hidden_states",
                "cross_present_key_names": "present_key_cross_%d",
                "cross_present_value_names": "present_value_cross_%d",
            },
            "num_key_value_heads": 1,
        },
    }
    _write(folder / "genai_config.json", {"model": model, "search": {"max_length": 448}})
    _write(folder / "audio_processor_config.json", _features(seconds, mels))
    write_tokenizer(folder, {text: _FIRST_ID + number for number, text in enumerate(special)})
    _write_graphs(folder, seconds, mels, type, _FIRST_ID + len(special))
    return folder


def _features(seconds: int, mels: int) -> dict[str, Any]:
    hann = [float(value) for value in 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_N_FFT) / _N_FFT)]
    stft = {"n_fft": _N_FFT, "frame_length": _N_FFT, "hop_length": _HOP, "_comment": hann}
    mel = {"chunk_size": seconds, "hop_length": _HOP, "n_fft": _N_FFT, "n_mel": mels}
    operations = (
        {"name": "audio_decoder", "type": "AudioDecoder"},
        {"name": "STFT", "type": "STFTNorm", "attrs": stft},
        {"name": "log_mel_spectrogram", "type": "LogMelSpectrum", "attrs": mel},
    )
    return {"feature_extraction": {"sequence": [{"operation": operation} for operation in operations]}}


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def _write_graphs(folder: Path, seconds: int, mels: int, type: int, vocabulary: int) -> None:
    frames, positions = 100 * seconds, 50 * seconds
    cross = (type, ["batch", 1, positions, 8])
    own = (type, ["batch", 1, "past", 8])
    write_graph(
        folder / "encoder.onnx",
        {"audio_features": (type, ["batch", mels, frames])},
        {
            "hidden_states": (type, ["batch", positions, 8]),
            "present_key_cross_0": cross,
            "present_value_cross_0": cross,
        },
    )
    write_graph(
        folder / "decoder.onnx",
        {
            "input_ids": (TensorProto.INT32, ["batch", "n"]),
            "past_key_self_0": own,
            "past_value_self_0": own,
            "past_key_cross_0": cross,
            "past_value_cross_0": cross,
        },
        {"logits": (type, ["batch", "n", vocabulary]), "present_key_self_0": own, "present_value_self_0": own},
    )
