"""The threads that encode images and audio: what they cache, what they report, and which requests they refuse."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from genai_server.engine.encoded_inputs import EncodedAudio, PromptImages
from genai_server.engine.encoder_worker import Align, AudioWorker, Encoded, ImageWorker, Tensors
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import InvalidField, RunnerFailed
from genai_server.messages.generation_request import Alignment, AudioInput, GenerationRequest, Image

TOKEN, WIDTH = 9, 2
IMAGE_BYTES = 2 * WIDTH * 4


class Bench:
    """A worker whose features are the pixels; each image has two."""

    def __init__(self, folder: Path, max_bytes: int = 10 * IMAGE_BYTES) -> None:
        self.folder = folder
        self.encoded: list[float] = []
        self.worker = ImageWorker(lambda: self._encode, TOKEN, max_bytes)

    def _encode(self, tensors: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        pixels = tensors["pixel_values"]
        if pixels[0, 0] < -1:
            raise KeyError("unexpected")
        if pixels[0, 0] < 0:
            raise RunnerFailed("an image cannot be encoded")
        self.encoded.append(float(pixels[0, 0]))
        return pixels

    def sequence(self, *values: float) -> Sequence:
        """A request with an image for each value."""
        images = []
        for place, value in enumerate(values):
            path = self.folder / f"{value}.npz"
            np.savez(path, pixel_values=np.full((2, WIDTH), value, np.float32))
            images.append(Image(str(value), str(path), 2 * place, 2))
        request = GenerationRequest("id", [TOKEN] * 2 * len(values), 4, 100, images=images)
        return Sequence(0, (0, 0), request, lambda: 0.0)

    def submit(self, sequence: Sequence) -> Encoded:
        results: SimpleQueue[Encoded] = SimpleQueue()
        self.worker.submit(sequence, results.put)
        return results.get(timeout=60)

    def prompt(self, *values: float) -> list[int]:
        """The prompt of a request, which then ends."""
        sequence = self.sequence(*values)
        found = self.submit(sequence)
        assert isinstance(found, PromptImages)
        sequence.state = SequenceState.ENDED
        return found.prompt


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_an_image_is_encoded_once(bench: Bench) -> None:
    first = bench.prompt(1, 2)
    assert bench.prompt(2, 1) == [*first[2:], *first[:2]]
    assert bench.prompt(1, 1, 3)[:4] == first[:2] * 2
    assert bench.encoded == [1, 2, 3]
    assert bench.worker.num_encoded == 3


def test_the_least_recently_used_image_is_dropped_and_keeps_its_ids(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_bytes=2 * IMAGE_BYTES)
    first, *others = (bench.prompt(value) for value in (1, 2, 1, 3, 4, 1, 2))
    # Each is kept besides the two that ended last.
    assert bench.encoded == [1, 2, 3, 4, 2]
    assert (first, others[0]) == (others[4], others[5])


@pytest.mark.parametrize(("value", "words"), [(-1, "an image cannot be encoded"), (-2, "internal error")])
def test_an_image_that_fails_fails_only_its_request(bench: Bench, value: int, words: str) -> None:
    found = bench.submit(bench.sequence(value))
    assert isinstance(found, RunnerFailed)
    assert words in found.message
    assert bench.prompt(1)


def test_a_missing_or_damaged_file_is_an_error(bench: Bench) -> None:
    missing, damaged = bench.sequence(1), bench.sequence(2)
    Path(missing.request.images[0].path).unlink()
    Path(damaged.request.images[0].path).write_bytes(b"PK\x03\x04 and no more")
    for sequence in (missing, damaged):
        found = bench.submit(sequence)
        assert isinstance(found, RunnerFailed)
        assert "an image cannot be read" in found.message


def test_features_that_do_not_fit_the_prompt_are_an_error(bench: Bench) -> None:
    sequence = bench.sequence(1)
    sequence.request.prompt[0] = 1
    found = bench.submit(sequence)
    assert isinstance(found, RunnerFailed)
    assert "2 features and 1 tokens" in found.message


def test_images_of_an_ended_sequence_are_left_out(bench: Bench) -> None:
    ended = bench.sequence(1)
    ended.state = SequenceState.ENDED
    bench.worker.submit(ended, lambda _: pytest.fail("it has ended"))
    bench.prompt(2)
    assert bench.encoded == [2]


def test_images_of_the_background_are_encoded_last(bench: Bench) -> None:
    results: SimpleQueue[Encoded] = SimpleQueue()
    go_on = threading.Event()
    bench.worker._thread.submit(go_on.wait)
    for value, low_priority in ((1, True), (2, False)):
        sequence = bench.sequence(value)
        sequence.request = msgspec.structs.replace(sequence.request, low_priority=low_priority)
        bench.worker.submit(sequence, results.put)
    go_on.set()
    for _ in range(2):
        results.get(timeout=60)
    assert bench.encoded == [2, 1]


_BYTES = 16


class AudioBench:
    """A worker whose encoder doubles the features, of 16 bytes with the result."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int = 10 * _BYTES,
        max_ahead: int = 100,
        open_aligner: Callable[[], Align] | None = None,
    ) -> None:
        self.folder = folder
        self.encoded: list[float] = []
        self.worker = AudioWorker(lambda: self._encode, max_bytes, max_ahead, open_aligner)

    def _encode(self, tensors: Tensors) -> EncodedAudio:
        features = tensors["audio_features"]
        self.encoded.append(float(features[0]))
        return EncodedAudio(features, [2 * features])

    def sequence(self, value: float, *, path: str | None = None, alignment: Alignment | None = None) -> Sequence:
        """A request with a sound."""
        file = self.folder / f"{value}.npz"
        np.savez(file, audio_features=np.array([value, 0], np.float32))
        sound = AudioInput(str(value), path or str(file))
        request = GenerationRequest("id", [1], 4, 100, sound=sound, alignment=alignment)
        return Sequence(0, (0, 0), request, lambda: 0.0)

    def submit(self, sequence: Sequence) -> Encoded:
        results: SimpleQueue[Encoded] = SimpleQueue()
        self.worker.submit(sequence, results.put)
        return results.get(timeout=60)


@pytest.fixture
def audio_bench(tmp_path: Path) -> AudioBench:
    return AudioBench(tmp_path)


def test_a_sequence_takes_its_sound(audio_bench: AudioBench) -> None:
    sequence = audio_bench.sequence(3.0)
    found = audio_bench.submit(sequence)
    assert isinstance(found, EncodedAudio)
    sequence.take(found)
    assert sequence.audio is found
    assert found.states[0].tolist() == [6.0, 0.0]
    assert sequence.tokens == [1]


def test_a_sequence_takes_the_times_of_its_tokens(tmp_path: Path) -> None:
    opened = []

    def open_aligner() -> Align:
        opened.append(1)
        return lambda alignment, sound: [float(sound.states[0][0]), *map(float, alignment.tokens)]

    audio_bench = AudioBench(tmp_path, open_aligner=open_aligner)
    plain = audio_bench.submit(audio_bench.sequence(3.0))
    assert not opened
    for last in (8, 9):
        found = audio_bench.submit(audio_bench.sequence(3.0, alignment=Alignment([7, last], 1, 1.0)))
        assert isinstance(found, EncodedAudio)
        assert found.token_times == [6.0, 7.0, float(last)]
    assert isinstance(plain, EncodedAudio)
    assert plain.token_times == ()
    assert (opened, audio_bench.encoded) == ([1], [3.0])


def test_times_are_refused_without_an_aligner(audio_bench: AudioBench) -> None:
    request = audio_bench.sequence(3.0, alignment=Alignment([7, 8], 1, 1.0)).request
    with pytest.raises(InvalidField, match="does not report when tokens are spoken"):
        audio_bench.worker.check(request)


def test_sound_of_a_present_request_is_encoded_once(tmp_path: Path) -> None:
    audio_bench = AudioBench(tmp_path, max_bytes=0)
    present = [audio_bench.sequence(value) for value in (1.0, 2.0, 3.0)]
    for sequence in present:
        audio_bench.submit(sequence)
    for value in (1.0, 2.0, 3.0):
        audio_bench.submit(audio_bench.sequence(value))
    assert audio_bench.encoded == [1.0, 2.0, 3.0]


def test_a_missing_file_fails_its_request_only(audio_bench: AudioBench) -> None:
    found = audio_bench.submit(audio_bench.sequence(1.0, path=str(audio_bench.folder / "gone.npz")))
    assert isinstance(found, RunnerFailed)
    assert "a sound cannot be read" in found.message
    assert isinstance(audio_bench.submit(audio_bench.sequence(2.0)), EncodedAudio)


def test_sounds_are_encoded_as_others_end(tmp_path: Path) -> None:
    audio_bench = AudioBench(tmp_path, max_ahead=2)
    first, second, third = (audio_bench.sequence(value) for value in (1.0, 2.0, 3.0))
    audio_bench.submit(first)
    audio_bench.submit(second)
    results: SimpleQueue[Encoded] = SimpleQueue()
    audio_bench.worker.submit(third, results.put)
    with pytest.raises(Empty):
        results.get(timeout=0.1)
    assert audio_bench.encoded == [1.0, 2.0]
    first.state = SequenceState.ENDED
    assert isinstance(results.get(timeout=60), EncodedAudio)


def test_a_request_that_ends_waits_no_longer(tmp_path: Path) -> None:
    audio_bench = AudioBench(tmp_path, max_ahead=1)
    first, waiting = audio_bench.sequence(1.0), audio_bench.sequence(2.0)
    audio_bench.submit(first)
    results: SimpleQueue[Encoded] = SimpleQueue()
    audio_bench.worker.submit(waiting, results.put)
    waiting.state = SequenceState.ENDED
    first.state = SequenceState.ENDED
    audio_bench.submit(audio_bench.sequence(3.0))
    assert results.empty()
    assert 2.0 not in audio_bench.encoded


def test_a_request_needs_a_sound_and_nothing_else(audio_bench: AudioBench) -> None:
    with pytest.raises(InvalidField, match="transcribes speech only"):
        audio_bench.worker.check(GenerationRequest("id", [1], 4, 100))
    with pytest.raises(InvalidField, match="images cannot be read by this model"):
        audio_bench.worker.check(GenerationRequest("id", [1], 4, 100, images=[Image("digest", "file", 0, 1)]))
    audio_bench.worker.check(audio_bench.sequence(1.0).request)
