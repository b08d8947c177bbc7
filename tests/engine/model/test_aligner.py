"""The part of a decoder that tells when tokens are spoken, of the graphs of the real builder."""

import io
import json
import shutil
import wave
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from genai_server.apis.transcriptions.words import words_of
from genai_server.audio.features import SpeechFeatures
from genai_server.engine.decoder_graph import DoesNotFit
from genai_server.engine.encoded_sound import EncodedSound
from genai_server.engine.model.aligner import Aligner, alignment_heads, score_heads, why_no_times
from genai_server.engine.model.cross_attention import CROSS_ATTENTION
from genai_server.engine.model.sound_encoder import SoundEncoder
from genai_server.engine.model.speech_files import read_cross_decoder, read_encoder_files
from genai_server.errors import RunnerFailed
from genai_server.messages.generation_request import Alignment
from genai_server.speech_model import FEATURES, read_speech_model
from genai_server.text.codec import load_text_codec
from tests.running_server import ROOT

BUILT, DEMO = ROOT / "tests" / "built_models" / "whisper", ROOT / "models" / "demo-speech"
RECORDING = ROOT / "tests" / "recordings" / "two_sentences.wav"


def encoded(directory: Path, features: np.ndarray) -> EncodedSound:
    return SoundEncoder(read_encoder_files(directory), threads=1).encode({FEATURES: features.astype(np.float32)})


def test_scores_are_those_of_the_graphs_own_attention() -> None:
    """The values that these scores weigh are what each layer's attention gives."""
    decoder = read_cross_decoder(BUILT)
    layers = range(len(decoder.past_names) // 2)
    model = onnx.load(str(decoder.path))
    own = {node.input[1]: node.output[0] for node in model.graph.node if node.op_type == CROSS_ATTENTION}
    wanted = [own[state.past] for state in decoder.cross_states[::2]]
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    plain.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in wanted)
    names = score_heads(model.graph, decoder, {layer: list(range(decoder.num_kv_heads)) for layer in layers})

    random = np.random.default_rng(3)
    sound = encoded(BUILT, 4 * random.standard_normal((1, 80, 1)) + random.standard_normal((1, 80, 3000)))
    inputs = {decoder.input_ids: np.array([[3, 9, 27, 81, 243]], np.int32)}
    inputs |= {
        name: np.zeros((1, decoder.num_kv_heads, 0, decoder.head_size), np.float32) for name in decoder.past_names
    }
    inputs |= {state.past: values for state, values in zip(decoder.cross_states, sound.states, strict=True)}

    def run(graph: onnx.ModelProto, outputs: list[str]) -> list[np.ndarray]:
        session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
        read = {value.name for value in session.get_inputs()}
        found: list[np.ndarray] = session.run(outputs, {k: v for k, v in inputs.items() if k in read})
        return found

    for layer, scores, expected in zip(layers, run(model, names), run(plain, wanted), strict=True):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        found = (weights @ sound.states[2 * layer + 1]).transpose(0, 2, 1, 3).reshape(expected.shape)
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_graph_ends_with_the_last_layer_that_counts() -> None:
    decoder = read_cross_decoder(DEMO)
    graph = onnx.load(str(decoder.path), load_external_data=False).graph
    assert score_heads(graph, decoder, {1: [0]}) == ["genai_server.scores.1"]
    names = {tensor.name for tensor in graph.initializer}
    assert any("layers.1.cross_attn" in name for name in names)
    assert not any("layers.2" in name or "lm_head" in name for name in names)
    assert not {"past_key_self_2", "past_key_cross_2"} & {value.name for value in graph.input}


def test_heads_are_those_of_the_file_or_the_last_half(tmp_path: Path) -> None:
    directory = shutil.copytree(DEMO, tmp_path / "model", ignore=shutil.ignore_patterns("*.data", "*.wav"))
    decoder = read_cross_decoder(directory)
    assert alignment_heads(directory, decoder) == {2: [0, 1], 3: [0, 1]}
    file = directory / "generation_config.json"
    config = json.loads(file.read_text())
    for given, found in ([[1, 0], [3, 1], [1, 1]], {1: [0, 1], 3: [1]}), ([[9, 0]], None), ("yes", None), ([], None):
        file.write_text(json.dumps(config | {"alignment_heads": given}))
        if found is None:
            assert "generation_config.json has" in why_no_times(directory)
            with pytest.raises(DoesNotFit):
                alignment_heads(directory, decoder)
        else:
            assert alignment_heads(directory, decoder) == found
            assert why_no_times(directory) == ""


def test_words_of_real_speech_have_their_times(tmp_path: Path) -> None:
    model = read_speech_model(DEMO)
    assert model is not None
    with wave.open(io.BytesIO(RECORDING.read_bytes())) as file:
        slow = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    samples = (2 * np.fft.irfft(np.fft.rfft(slow), 2 * len(slow))).astype(np.int16)
    sound = encoded(DEMO, SpeechFeatures(DEMO, tmp_path).compute(samples))
    codec = load_text_codec(DEMO, "cpu")
    text = codec.tokenizer.encode(" Turn on the printer in the office. Set a timer for ten seconds.")
    before = [model.start_of_transcript, model.languages["en"], model.transcribe, model.no_timestamps]
    alignment = Alignment([*before, *text, model.end_of_text], len(before), len(samples) / 16_000)
    times = Aligner(DEMO, threads=1).times(alignment, sound)
    words = words_of(text, times, codec.tokenizer.token_bytes, "en")
    codec.close()
    assert [word.text for word in words[:3]] == ["Turn", "on", "the"]
    assert times == sorted(times)
    begins = {word.text: word.start for word in words}
    # The sentences begin at 0.25 s and 2.76 s.
    assert begins["Turn"] < begins["on"] < 1.0
    assert 2.5 < begins["Set"] < 3.0
    assert 3.2 < begins["ten"] < 4.2
    assert 4.0 < words[-1].end < 4.77


def test_failure_of_the_graph_is_named() -> None:
    sound = encoded(BUILT, np.zeros((1, 80, 3000)))
    with pytest.raises(RunnerFailed, match="the times of tokens cannot be computed"):
        Aligner(BUILT, threads=1).times(Alignment([1, 10**8, 2], 1, 3.0), sound)
