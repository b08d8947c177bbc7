"""When tokens are spoken: by the graphs of the real builder, and from given attention scores."""

import io
import itertools
import json
import shutil
import wave
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from genai_server.apis.transcriptions.windows import words_of
from genai_server.engine.encoded_inputs import EncodedAudio
from genai_server.engine.graph_description import DoesNotFit
from genai_server.engine.model.aligner import Aligner, _path, _smooth, alignment_heads, token_times, why_no_times
from genai_server.engine.model.encoders import AudioEncoder
from genai_server.engine.model.graph_reader import read_cross_decoder, read_encoder_files
from genai_server.errors import RunnerFailed
from genai_server.media.audio.features import SpeechFeatures
from genai_server.messages.generation_request import Alignment
from genai_server.model_files.speech_and_vision import FEATURES, read_speech_model
from genai_server.text.codec import load_text_codec
from tests.running_server import ROOT

BUILT, DEMO = ROOT / "tests" / "built_models" / "whisper", ROOT / "models" / "demo-speech"
RECORDING = ROOT / "tests" / "recordings" / "two_sentences.wav"


def encoded(directory: Path, features: np.ndarray) -> EncodedAudio:
    return AudioEncoder(read_encoder_files(directory), threads=1).encode({FEATURES: features.astype(np.float32)})


def test_keys_and_values_of_sounds_have_a_known_form(tmp_path: Path) -> None:
    directory = shutil.copytree(BUILT, tmp_path / "model", ignore=shutil.ignore_patterns("*.data"))
    decoder = read_cross_decoder(directory)
    model = onnx.load(str(decoder.path), load_external_data=False)
    (sounds,) = (value for value in model.graph.input if value.name == decoder.cross_states[0].past)
    del sounds.type.tensor_type.shape.dim[3]
    onnx.save(model, str(decoder.path))
    with pytest.raises(DoesNotFit, match="keys and values of audio"):
        read_cross_decoder(directory)


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


FRAME = 0.02


def cheapest(costs: NDArray[np.float32]) -> float:
    """The cost of the cheapest path, cell by cell."""
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0
    for row, column in itertools.product(range(rows), range(columns)):
        before = min(total[row, column], total[row, column + 1], total[row + 1, column])
        total[row + 1, column + 1] = costs[row, column] + before
    return float(total[-1, -1])


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 20), (20, 3), (12, 40)])
def test_path_is_the_cheapest(shape: tuple[int, int]) -> None:
    costs = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    rows, columns = _path(costs)
    assert (rows[0], columns[0]) == (0, 0)
    assert (rows[-1], columns[-1]) == (shape[0] - 1, shape[1] - 1)
    steps = set(zip(np.diff(rows).tolist(), np.diff(columns).tolist(), strict=True))
    assert steps <= {(0, 1), (1, 0), (1, 1)}
    assert float(costs[rows, columns].astype(np.float64).sum()) == pytest.approx(cheapest(costs), abs=1e-4)


@pytest.mark.parametrize("num_frames", [4, 7, 40])
def test_weights_become_the_median_of_seven_frames(num_frames: int) -> None:
    weights = np.random.default_rng(num_frames).standard_normal((5, num_frames)).astype(np.float32)
    padded = np.pad(weights, ((0, 0), (3, 3)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 7, axis=-1)
    assert np.array_equal(_smooth(weights), np.median(windows, axis=-1))


def heads(spoken: list[tuple[int, int]], num_frames: int) -> NDArray[np.float32]:
    """Scores of two heads, of which each token attends to its own frames."""
    scores = np.zeros((2, len(spoken), num_frames), np.float32)
    for token, (first, last) in enumerate(spoken):
        scores[:, token, first:last] = 8
    return scores + np.random.default_rng(0).uniform(-1, 1, scores.shape).astype(np.float32)


def test_tokens_begin_where_they_are_attended_to() -> None:
    spoken = [(0, 40), (40, 100), (100, 110), (110, 200), (200, 240)]
    found = token_times(heads(spoken, 1500), 240, FRAME)
    assert found == pytest.approx([first * FRAME for first, _ in spoken], abs=2.5 * FRAME)


def test_frames_behind_the_sound_do_not_count() -> None:
    scores = heads([(0, 40), (40, 80)], 1500)
    scores[:, :, 700:] = 30
    assert token_times(scores, 80, FRAME) == pytest.approx([0, 0.8], abs=2.5 * FRAME)


@pytest.mark.parametrize("num_frames", [0, 1, 2, 3, 4, 7])
def test_shortest_sounds_have_times(num_frames: int) -> None:
    found = token_times(heads([(0, 1), (1, 2), (2, 3)], 1500), num_frames, FRAME)
    assert len(found) == 3
    assert found == sorted(found)
    assert 0 <= found[0] <= found[-1] <= max(0, num_frames - 1) * FRAME
