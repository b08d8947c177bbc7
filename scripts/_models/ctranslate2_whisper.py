"""Writes a Whisper model of CTranslate2 as a directory in Hugging Face's format. It needs `.venv-models`."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import WhisperConfig, WhisperFeatureExtractor

_TYPES: dict[int, Any] = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_WIDTH_OF_HEAD = 64
_NO_TIMES, _SECONDS_OF_MARK, _NUM_MARKS = "<|notimestamps|>", 0.02, 1501
_END = "<|endoftext|>"


class Whisper:
    """The variables of CTranslate2's file `model.bin`, and the tensors that they become."""

    def __init__(self, data: bytes) -> None:
        self.tensors: dict[str, Any] = {}
        self._variables = dict(read_variables(data))
        self.width = int(self._variables["decoder/embeddings/weight"].shape[1])
        self.layers = sum(f"encoder/layer_{n}/ffn/linear_0/weight" in self._variables for n in range(64))

    def convert(self, num_tokens: int) -> None:
        """Make all tensors, with an embedding of so many tokens."""
        for side in ("encoder", "decoder"):
            for layer in range(self.layers):
                self._layer(side, f"model.{side}.layers.{layer}", f"{side}/layer_{layer}")
            self._norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
            self._put(f"model.{side}.embed_positions.weight", self._variables[f"{side}/position_encodings/encodings"])
        for conv in ("conv1", "conv2"):
            self._linear(f"model.encoder.{conv}", f"encoder/{conv}")
        self._put("model.decoder.embed_tokens.weight", self._variables["decoder/embeddings/weight"][:num_tokens])

    def _put(self, name: str, values: Any) -> None:
        self.tensors[name] = torch.from_numpy(np.ascontiguousarray(values).astype(np.float32))

    def _linear(self, name: str, source: str, rows: slice = slice(None), *, with_bias: bool = True) -> None:
        self._put(f"{name}.weight", self._variables[f"{source}/weight"][rows])
        if with_bias:
            self._put(f"{name}.bias", self._variables[f"{source}/bias"][rows])

    def _norm(self, name: str, source: str) -> None:
        self._put(f"{name}.weight", self._variables[f"{source}/gamma"])
        self._put(f"{name}.bias", self._variables[f"{source}/beta"])

    def _layer(self, side: str, name: str, source: str) -> None:
        self._attention(f"{name}.self_attn", f"{source}/self_attention", joined=3)
        self._norm(f"{name}.self_attn_layer_norm", f"{source}/self_attention/layer_norm")
        if side == "decoder":
            self._attention(f"{name}.encoder_attn", f"{source}/attention", joined=2)
            self._norm(f"{name}.encoder_attn_layer_norm", f"{source}/attention/layer_norm")
        self._linear(f"{name}.fc1", f"{source}/ffn/linear_0")
        self._linear(f"{name}.fc2", f"{source}/ffn/linear_1")
        self._norm(f"{name}.final_layer_norm", f"{source}/ffn/layer_norm")

    def _attention(self, name: str, source: str, joined: int) -> None:
        """The projections: of queries, keys and values in one matrix, or queries apart from the two others."""
        parts = [slice(n * self.width, (n + 1) * self.width) for n in range(joined)]
        first, last = f"{source}/linear_{3 - joined}", f"{source}/linear_{4 - joined}"
        self._linear(f"{name}.q_proj", f"{source}/linear_0", parts[0])
        self._linear(f"{name}.k_proj", first, parts[-2], with_bias=False)
        self._linear(f"{name}.v_proj", first, parts[-1])
        self._linear(f"{name}.out_proj", last)


def read_variables(data: bytes) -> Iterable[tuple[str, Any]]:
    """The named arrays of a `model.bin`."""
    place = 0

    def take(form: str) -> Any:
        nonlocal place
        (value,) = struct.unpack_from(f"<{form}", data, place)
        place += struct.calcsize(f"<{form}")
        return value

    def take_text() -> str:
        nonlocal place
        size = take("H")
        place += size
        return data[place - size : place - 1].decode()

    take("I"), take_text(), take("I")
    for _ in range(take("I")):
        name = take_text()
        shape = [take("I") for _ in range(take("B"))]
        kind, size = _TYPES[take("B")], take("I")
        yield name, np.frombuffer(data, kind, size // np.dtype(kind).itemsize, place).reshape(shape)
        place += size


def convert(parts: Iterable[Path], folder: Path, target: Path) -> None:
    """Write the model whose file is these parts, and whose other files are in `folder`."""
    target.mkdir(parents=True, exist_ok=True)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())
    tokens = {token["content"]: token["id"] for token in vocabulary["added_tokens"]}
    first = tokens[_NO_TIMES] + 1
    num_tokens = first + _NUM_MARKS
    if first not in tokens.values():  # CTranslate2's file lacks the marks of times
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        vocabulary["added_tokens"] += [
            {"id": first + n, "content": f"<|{n * _SECONDS_OF_MARK:.2f}|>", **flags} for n in range(_NUM_MARKS)
        ]
    model = Whisper(b"".join(path.read_bytes() for path in parts))
    model.convert(num_tokens)
    save_file(model.tensors, target / "model.safetensors", {"format": "pt"})
    heads = model.width // _WIDTH_OF_HEAD
    special = {
        "decoder_start_token_id": tokens["<|startoftranscript|>"],
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokens[_END]),
    }
    WhisperConfig(
        vocab_size=num_tokens,
        d_model=model.width,
        encoder_layers=model.layers,
        decoder_layers=model.layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * model.width,
        decoder_ffn_dim=4 * model.width,
        architectures=["WhisperForConditionalGeneration"],
        **special,
    ).save_pretrained(target)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(target)
    told = json.loads((folder / "config.json").read_text())
    generation = special | {
        "alignment_heads": told["alignment_heads"],
        "suppress_tokens": told["suppress_ids"],
        "begin_suppress_tokens": told["suppress_ids_begin"],
        "no_timestamps_token_id": tokens[_NO_TIMES],
        "max_length": 448,
        "max_initial_timestamp_index": 50,
        "is_multilingual": True,
        "lang_to_id": {token: number for token, number in tokens.items() if number in told["lang_ids"]},
        "task_to_id": {task: tokens[f"<|{task}|>"] for task in ("transcribe", "translate")},
    }
    (target / "generation_config.json").write_text(json.dumps(generation))
    (target / "tokenizer.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    names = {"tokenizer_class": "WhisperTokenizer", "model_max_length": 1024}
    names |= dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), _END)
    (target / "tokenizer_config.json").write_text(json.dumps(names))
