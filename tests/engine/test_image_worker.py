"""The thread that encodes images: what it keeps, and what it reports."""

import threading
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from genai_server.engine.encoder_worker import Encoded
from genai_server.engine.image_worker import ImageWorker
from genai_server.engine.prompt_images import PromptImages
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import RunnerFailed
from genai_server.messages.generation_request import GenerationRequest, Image

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


def test_the_least_recently_used_image_is_dropped(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_bytes=2 * IMAGE_BYTES)
    for value in (1, 2, 1, 3, 4, 1, 2):
        bench.prompt(value)
    # Each is kept besides the two that ended last.
    assert bench.encoded == [1, 2, 3, 4, 2]


def test_an_image_encoded_again_keeps_its_ids(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_bytes=0)
    first, _ = bench.prompt(1), bench.prompt(2)
    assert bench.prompt(1) == first
    assert bench.encoded == [1, 2, 1]


def test_an_image_that_fails_fails_only_its_request(bench: Bench) -> None:
    assert isinstance(bench.submit(bench.sequence(-1)), RunnerFailed)
    assert bench.prompt(1)


def test_an_unexpected_error_fails_only_its_request(bench: Bench) -> None:
    found = bench.submit(bench.sequence(-2))
    assert isinstance(found, RunnerFailed)
    assert "internal error" in found.message
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
