"""Reading the images of requests: limits, sources, damaged files, and processes that die."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from genai_server.config.settings import Settings
from genai_server.errors import ImageReaderUnavailable, InvalidField
from genai_server.images.image_files import ReadImage
from genai_server.images.reader import Images, ImageSource
from genai_server.messages.worker_tasks import TaskOwner
from genai_server.vision_model import VisionModel, read_vision_model
from genai_server.workers.limits import WorkerLimits
from genai_server.workers.pool import WorkerPool
from genai_server.workers.process import ProcessDied, ProcessTimeout, WorkerProcess
from genai_server.workers.task_kinds import READ_IMAGE, TaskKind
from genai_server.workers.workers import Requester
from tests.images.pictures import data_url, encoded, picture, png_header
from tests.images.vision_directory import IDS, make_vision_directory

ALICE, BOB = (Requester(TaskOwner(name, f"{name}'s"), name) for name in ("alice", "bob"))


class Seen:
    """A reader of images, what it has counted, and its processes. To be used and closed in an event loop."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.results: Counter[str] = Counter()
        self.processes: list[WorkerProcess] = []
        self.folder = folder / "engines"
        self.folder.mkdir(exist_ok=True)
        self.model_dir = folder / "model"
        if not self.model_dir.exists():
            make_vision_directory(self.model_dir)
        checked = Settings.model_validate(settings)
        self.pool = WorkerPool(WorkerLimits.of(checked), self._start)
        self.images = Images(self.pool, checked, self.folder, self._count)

    def close(self) -> None:
        """End the processes and remove the files."""
        self.images.close()
        self.pool.close()

    @property
    def model(self) -> VisionModel:
        model = read_vision_model(self.model_dir)
        assert model is not None
        return model

    async def read(self, *sources: bytes | str | ImageSource, requester: Requester = ALICE) -> list[ReadImage]:
        """Read files, URLs or sources."""
        return await self.images.read(self.model, [_source(*pair) for pair in enumerate(sources)], requester)

    def _count(self, result: str) -> None:
        self.results[result] += 1

    def _start(self, kind: TaskKind, spec: Mapping[str, Any]) -> WorkerProcess:
        self.processes.append(WorkerProcess(kind, spec))
        return self.processes[-1]


def _source(number: int, source: bytes | str | ImageSource) -> ImageSource:
    if isinstance(source, ImageSource):
        return source
    url = data_url(source) if isinstance(source, bytes) else source
    return ImageSource(url, low_detail=False, param=f"input[{number}]")


def _run(folder: Path, work: Callable[[Seen], Awaitable[None]], **settings: Any) -> Seen:
    seen = Seen(folder, **settings)

    async def main() -> None:
        with closing(seen):
            await work(seen)

    asyncio.run(main())
    assert [process.pid for process in seen.processes if process.is_alive] == []
    assert list(seen.folder.iterdir()) == []
    return seen


def test_image_is_prepared_for_its_model(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        (image,) = await seen.read(encoded(picture(640, 480)))
        assert image.expansion == [IDS["<|image_pad|>"]] * 300
        assert image.grid == (1, 15, 20)
        with np.load(image.path, allow_pickle=False) as tensors:
            assert tensors["pixel_values"].shape == (1200, 1536)
            assert tensors["image_grid_thw"].tolist() == [[1, 30, 40]]
        assert image.path.parent == seen.folder / f"images-{os.getpid()}"

    assert _run(own_folder, work).results == {"read": 1}


def test_equal_images_are_read_once_and_kept(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        one, other = encoded(), encoded(picture(96, 96))
        first, second, third = await seen.read(one, other, one)
        assert first is third
        assert first.digest != second.digest
        assert (await seen.read(one))[0] is first
        digest = first.digest
        del first, third
        assert (await seen.read(one))[0].digest == digest

    assert _run(own_folder, work).results == {"read": 2}


def test_detail_and_model_are_part_of_the_digest(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        url = data_url(encoded(picture(1024, 64)))
        high, low = await seen.read(ImageSource(url, False, "a"), ImageSource(url, True, "b"))
        assert (high.grid, low.grid) == ((1, 2, 32), (1, 1, 16))
        assert high.digest != low.digest
        (alone,) = await seen.read(url)
        seen.model_dir = make_vision_directory(own_folder / "other")
        assert (await seen.read(url))[0].digest != alone.digest

    _run(own_folder, work)


def test_too_many_images_are_refused_before_any_work(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        with pytest.raises(InvalidField, match=r"at most 2 images \(GENAI_MAX_MEDIA\), given 3") as refused:
            await seen.read("x", "y", "z")
        assert refused.value.param == "input[2]"

    assert _run(own_folder, work, max_media=2).processes == []


def test_too_many_tokens_together_are_refused(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        one = encoded(picture(640, 480))
        assert len(await seen.read(one)) == 1
        with pytest.raises(InvalidField, match=r"at most 599 tokens together \(GENAI_MAX_MEDIA_TOKENS\), given 600"):
            await seen.read(one, one)

    _run(own_folder, work, max_media_tokens=599)


def test_too_many_tokens_of_one_image_leave_no_file(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        with pytest.raises(InvalidField, match=r"at most 299 tokens \(GENAI_MAX_MEDIA_TOKENS\), given 300") as refused:
            await seen.read(encoded(picture(640, 480)))
        assert refused.value.param == "input[0]"
        assert list((seen.folder / f"images-{os.getpid()}").iterdir()) == []

    assert _run(own_folder, work, max_media_tokens=299).results == {"refused": 1}


def test_too_many_pixels_are_refused(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        words = r"input\[0\]: the image may have at most 100 pixels \(GENAI_MAX_IMAGE_PIXELS\), given 11x10"
        with pytest.raises(InvalidField, match=words):
            await seen.read(png_header(11, 10))

    _run(own_folder, work, max_image_pixels=100)


def test_image_that_cannot_be_decoded_costs_no_process(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        good, *bad = encoded(), b"text", encoded()[:60], encoded(format="TIFF")
        for data in bad:
            with pytest.raises(InvalidField, match=r"input\[1\]: the image is"):
                await seen.read(good, data)
        assert len(await seen.read(good)) == 1

    seen = _run(own_folder, work)
    assert seen.results == {"read": 1, "refused": 3}
    assert len(seen.processes) <= 2


def _hang(process: WorkerProcess, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
    Path(question["path"]).write_bytes(b"a part")
    os.kill(process.pid, signal.SIGSTOP)
    return _ASK(process, question, data, min(timeout, 1))


def _die(process: WorkerProcess, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
    Path(question["path"]).write_bytes(b"a part")
    os.kill(process.pid, signal.SIGKILL)
    return _ASK(process, question, data, timeout)


_ASK = WorkerProcess.ask


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(
    ("ask", "words", "results", "processes"),
    [
        (_hang, r"takes longer than \d+ s to prepare \(GENAI_MEDIA_TIMEOUT\)", {"timed_out": 1}, 2),
        (_die, "crashes the process that reads images", {"crashed": 1}, 3),
    ],
)
def test_image_that_ends_its_process_is_refused_alone(
    own_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    ask: Any,
    words: str,
    results: dict[str, int],
    processes: int,
) -> None:
    async def work(seen: Seen) -> None:
        monkeypatch.setattr(WorkerProcess, "ask", ask)
        with pytest.raises(InvalidField, match=words) as refused:
            await seen.read(encoded())
        assert refused.value.param == "input[0]"
        assert list((seen.folder / f"images-{os.getpid()}").iterdir()) == []
        monkeypatch.setattr(WorkerProcess, "ask", _ASK)
        assert len(await seen.read(encoded())) == 1

    seen = _run(own_folder, work)
    assert seen.results == {**results, "read": 1}
    assert len(seen.processes) == processes


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps to it on Linux")
def test_memory_of_a_process_is_limited(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        await seen.read(encoded())
        process = psutil.Process(seen.processes[0].pid)
        soft, _ = process.rlimit(psutil.RLIMIT_AS)
        process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + 30_000_000, soft))
        with pytest.raises(InvalidField, match="memory|is damaged|refused"):
            await seen.read(encoded(picture(4000, 3000)))

    _run(own_folder, work)


def test_process_has_no_keys_and_settings(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENAI_API_KEYS", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")

    async def work(seen: Seen) -> None:
        await seen.read(encoded())
        environment = psutil.Process(seen.processes[0].pid).environ()
        assert not {"GENAI_API_KEYS", "HF_TOKEN"} & set(environment)

    _run(own_folder, work)


def test_model_that_cannot_be_loaded_makes_images_unavailable(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        (seen.model_dir / "processor_config.json").write_text("{", encoding="utf-8")
        with pytest.raises(ImageReaderUnavailable, match="does not start: .*processor"):
            await seen.read(encoded())

    _run(own_folder, work)


def test_process_that_cannot_be_started_is_unavailable(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    async def work(seen: Seen) -> None:
        with pytest.raises(ImageReaderUnavailable, match="no process that reads images can be started: No such file"):
            await seen.read(encoded())

    _run(own_folder, work)


def test_files_are_removed_beyond_their_limit(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        kept = await seen.read(encoded())
        for size in (96, 128, 160):
            digest = (await seen.read(encoded(picture(size, size))))[0].digest
        left = {path.stem for path in (seen.folder / f"images-{os.getpid()}").iterdir()}
        assert left == {kept[0].digest, digest}

    _run(own_folder, work, encoder_cache_bytes=0)


def test_folders_of_dead_api_processes_are_removed(own_folder: Path) -> None:
    engines = own_folder / "engines"
    gone = psutil.Process().pid
    while psutil.pid_exists(gone):
        gone += 1
    for name in (f"images-{gone}", f"images-{os.getpid()}", f"images-{os.getppid()}", "images-x", "metrics"):
        (engines / name / "inner").mkdir(parents=True)
    Seen(own_folder).close()
    assert sorted(path.name for path in engines.iterdir()) == sorted(["images-x", "metrics", f"images-{os.getppid()}"])


def test_keys_share_no_images(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        (of_alice,) = await seen.read(encoded())
        (of_bob,) = await seen.read(encoded(), requester=BOB)
        assert of_alice.digest != of_bob.digest
        assert of_alice.path != of_bob.path
        assert (await seen.read(encoded()))[0] is of_alice
        assert (await seen.read(encoded(), requester=BOB))[0] is of_bob

    assert _run(own_folder, work).results == {"read": 2}


def test_too_many_pixels_together_are_refused_before_any_work(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        words = r"at most 149 pixels together \(GENAI_MAX_REQUEST_PIXELS\), given 150"
        with pytest.raises(InvalidField, match=words) as refused:
            await seen.read(png_header(10, 10), png_header(5, 10))
        assert refused.value.param == "input[1]"

    assert _run(own_folder, work, max_request_pixels=149).processes == []


def test_an_image_with_more_pixels_than_its_head_says_waits_for_its_turn_again(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = []

    def ask(process: WorkerProcess, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
        costs.append(question["max_cost"])
        return _ASK(process, question, data, timeout)

    async def work(seen: Seen) -> None:
        monkeypatch.setattr(WorkerProcess, "ask", ask)
        monkeypatch.setattr("genai_server.images.reader.declared_size", lambda data: None)
        (image,) = await seen.read(encoded(picture(640, 480)))
        assert image.grid == (1, 15, 20)
        assert len(list(image.path.parent.iterdir())) == 1
        with pytest.raises(InvalidField, match=r"GENAI_MAX_REQUEST_PIXELS\), given 307681"):
            await seen.read(encoded(picture(641, 480)), png_header(1, 1))

    _run(own_folder, work, max_request_pixels=307_200)
    assert costs[:2] == [1, 640 * 480]


def test_a_process_started_in_advance_reads_the_first_image(own_folder: Path) -> None:
    async def work(seen: Seen) -> None:
        for _ in range(2):
            await seen.images.start(seen.model)
        assert len(seen.processes) == 1
        await seen.read(encoded())
        assert len(seen.processes) == 1

    assert _run(own_folder, work).results == {"read": 1}


def test_failure_of_a_start_in_advance_is_logged(own_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(seen: Seen) -> None:
        (seen.model_dir / "processor_config.json").write_text("{", encoding="utf-8")
        await seen.images.start(seen.model)

    _run(own_folder, work)
    assert f"no process for the images of {own_folder / 'model'}: " in caplog.text


def _image_process(folder: Path) -> WorkerProcess:
    if not (folder / "model").exists():
        make_vision_directory(folder / "model")
    spec = {"model_dir": str(folder / "model"), "folder": str(folder), "max_pixels": 10_000, "max_tokens": 99}
    return WorkerProcess(READ_IMAGE, spec | {"medium": "image", "max_seconds": 1})


def _question(folder: Path) -> dict[str, Any]:
    return {"path": str(folder / "a.npz"), "low_detail": False, "max_cost": 10_000}


def test_a_process_that_is_gone_says_how(own_folder: Path) -> None:
    process = _image_process(own_folder)
    process._process.kill()
    with pytest.raises(ProcessDied, match="exit status"):
        process.ask(_question(own_folder), encoded(), 10)
    if sys.platform != "win32":
        process = _image_process(own_folder)
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(ProcessTimeout):
            process.ask(_question(own_folder), encoded(), 0.1)


def test_process_ends_with_its_parents_pipe(own_folder: Path) -> None:
    process = _image_process(own_folder)
    if sys.platform != "win32":
        os.kill(process.pid, signal.SIGTERM)
    assert process.ask(_question(own_folder), b"no image", 60)["refused"]
    assert process._process.stdin is not None
    process._process.stdin.close()
    assert process._process.wait(10) == 0
    process.end()


def test_few_images_are_fetched_at_a_time(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0

    async def load(url: str, *arguments: Any, **options: Any) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        raise InvalidField("gone", param="p")

    monkeypatch.setattr("genai_server.images.reader.load_image", load)

    async def work(seen: Seen) -> None:
        asked = (seen.read(f"http://images.example/{number}") for number in range(30))
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(error, InvalidField) for error in found)

    _run(own_folder, work, max_media=100, image_hosts="images.example")
    assert most == 8
