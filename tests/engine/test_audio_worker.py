"""The thread that encodes sounds: what it keeps, and which requests it refuses."""

from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np
import pytest

from genai_server.engine.audio_worker import Align, AudioWorker
from genai_server.engine.encoded_audio import EncodedAudio
from genai_server.engine.encoder_worker import Encoded, Tensors
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import InvalidField, RunnerFailed
from genai_server.messages.generation_request import Alignment, GenerationRequest, Image, Sound

_BYTES = 16


class Bench:
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
        sound = Sound(str(value), path or str(file))
        request = GenerationRequest("id", [1], 4, 100, sound=sound, alignment=alignment)
        return Sequence(0, (0, 0), request, lambda: 0.0)

    def submit(self, sequence: Sequence) -> Encoded:
        results: SimpleQueue[Encoded] = SimpleQueue()
        self.worker.submit(sequence, results.put)
        return results.get(timeout=60)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_sequence_takes_its_sound(bench: Bench) -> None:
    sequence = bench.sequence(3.0)
    found = bench.submit(sequence)
    assert isinstance(found, EncodedAudio)
    sequence.take(found)
    assert sequence.sound is found
    assert found.states[0].tolist() == [6.0, 0.0]
    assert sequence.tokens == [1]


def test_a_sequence_takes_the_times_of_its_tokens(tmp_path: Path) -> None:
    opened = []

    def open_aligner() -> Align:
        opened.append(1)
        return lambda alignment, sound: [float(sound.states[0][0]), *map(float, alignment.tokens)]

    bench = Bench(tmp_path, open_aligner=open_aligner)
    plain = bench.submit(bench.sequence(3.0))
    assert not opened
    for last in (8, 9):
        found = bench.submit(bench.sequence(3.0, alignment=Alignment([7, last], 1, 1.0)))
        assert isinstance(found, EncodedAudio)
        assert found.token_times == [6.0, 7.0, float(last)]
    assert isinstance(plain, EncodedAudio)
    assert plain.token_times == ()
    assert (opened, bench.encoded) == ([1], [3.0])


def test_times_are_refused_without_an_aligner(bench: Bench) -> None:
    request = bench.sequence(3.0, alignment=Alignment([7, 8], 1, 1.0)).request
    with pytest.raises(InvalidField, match="does not report when tokens are spoken"):
        bench.worker.check(request)


def test_an_equal_sound_is_encoded_once(bench: Bench) -> None:
    for value in (1.0, 2.0, 1.0):
        bench.submit(bench.sequence(value))
    assert bench.encoded == [1.0, 2.0]
    assert bench.worker.num_encoded == 2


def test_the_longest_unused_is_dropped_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_bytes=2 * _BYTES)
    for value in (1.0, 2.0, 1.0, 3.0, 4.0, 1.0, 2.0):
        sequence = bench.sequence(value)
        bench.submit(sequence)
        sequence.state = SequenceState.ENDED
    # Each is kept besides the two that ended last.
    assert bench.encoded == [1.0, 2.0, 3.0, 4.0, 2.0]


def test_sound_of_a_present_request_is_encoded_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_bytes=0)
    present = [bench.sequence(value) for value in (1.0, 2.0, 3.0)]
    for sequence in present:
        bench.submit(sequence)
    for value in (1.0, 2.0, 3.0):
        bench.submit(bench.sequence(value))
    assert bench.encoded == [1.0, 2.0, 3.0]


def test_sounds_of_ended_requests_count_towards_the_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_bytes=0)
    for value in (1.0, 2.0, 1.0):
        sequence = bench.sequence(value)
        bench.submit(sequence)
        sequence.state = SequenceState.ENDED
    assert bench.encoded == [1.0, 2.0, 1.0]


def test_a_missing_file_fails_its_request_only(bench: Bench) -> None:
    found = bench.submit(bench.sequence(1.0, path=str(bench.folder / "gone.npz")))
    assert isinstance(found, RunnerFailed)
    assert "a sound cannot be read" in found.message
    assert isinstance(bench.submit(bench.sequence(2.0)), EncodedAudio)


def test_an_ended_request_is_left_out(bench: Bench) -> None:
    ended = bench.sequence(1.0)
    ended.state = SequenceState.ENDED
    results: SimpleQueue[Encoded] = SimpleQueue()
    bench.worker.submit(ended, results.put)
    bench.submit(bench.sequence(2.0))
    assert results.empty()
    assert bench.encoded == [2.0]


def test_sounds_are_encoded_as_others_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_ahead=2)
    first, second, third = (bench.sequence(value) for value in (1.0, 2.0, 3.0))
    bench.submit(first)
    bench.submit(second)
    results: SimpleQueue[Encoded] = SimpleQueue()
    bench.worker.submit(third, results.put)
    with pytest.raises(Empty):
        results.get(timeout=0.1)
    assert bench.encoded == [1.0, 2.0]
    first.state = SequenceState.ENDED
    assert isinstance(results.get(timeout=60), EncodedAudio)


def test_a_request_that_ends_waits_no_longer(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_ahead=1)
    first, waiting = bench.sequence(1.0), bench.sequence(2.0)
    bench.submit(first)
    results: SimpleQueue[Encoded] = SimpleQueue()
    bench.worker.submit(waiting, results.put)
    waiting.state = SequenceState.ENDED
    first.state = SequenceState.ENDED
    bench.submit(bench.sequence(3.0))
    assert results.empty()
    assert 2.0 not in bench.encoded


def test_a_request_needs_a_sound_and_nothing_else(bench: Bench) -> None:
    with pytest.raises(InvalidField, match="transcribes speech only"):
        bench.worker.check(GenerationRequest("id", [1], 4, 100))
    with pytest.raises(InvalidField, match="images cannot be read by this model"):
        bench.worker.check(GenerationRequest("id", [1], 4, 100, images=[Image("digest", "file", 0, 1)]))
    bench.worker.check(bench.sequence(1.0).request)
