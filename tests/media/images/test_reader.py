"""Reading the images of requests: limits, sources, damaged files, and processes that die."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from genai_server.config.settings import Settings
from genai_server.engine_client.supervisor import SupervisorClient
from genai_server.errors import ImageReaderUnavailable, InvalidField
from genai_server.media.images.image_files import PreparedImage
from genai_server.media.images.reader import Images, ImageSource
from genai_server.messages.supervisor_protocol import TaskOwner, read_address
from genai_server.model_files.speech_and_vision import VisionModel, read_vision_model
from genai_server.supervisor.server import SupervisorServer
from genai_server.workers.pool import WorkerLimits, WorkerPool
from genai_server.workers.process import ProcessDied, ProcessTimeout, WorkerProcess
from genai_server.workers.task_queue import Reservation, SpaceBudget
from genai_server.workers.tasks import READ_IMAGE, Requester, TaskKind
from tests.media.images.pictures import data_url, encoded, picture, png_header, tiles
from tests.media.images.vision_directory import IDS, make_vision_directory
from tests.running_server import PATIENCE, wait_until

ALICE, BOB = (Requester(TaskOwner(name, f"{name}'s"), name) for name in ("alice", "bob"))

# Budgets of disk space for few images, and for even fewer.
_SMALL: dict[str, Any] = {"max_audio_seconds": 1, "max_prepared_bytes": 80_000_000}
_SMALLER = _SMALL | {"max_prepared_bytes": 40_000_000}

pytestmark = pytest.mark.anyio


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
        # An image takes as long as the machine is slow, so that only tests of that limit have a short one.
        checked = Settings.model_validate({"media_timeout": PATIENCE} | settings)
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

    async def read(self, *sources: bytes | str | ImageSource, requester: Requester = ALICE) -> list[PreparedImage]:
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


@asynccontextmanager
async def reading(folder: Path, **settings: Any) -> AsyncIterator[Seen]:
    """A reader with these settings, whose processes and files are gone at the end."""
    with closing(Seen(folder, **settings)) as seen:
        yield seen
    await _until(lambda: not any(process.is_alive for process in seen.processes))
    # A process that was ended while it started leaves an empty folder here, which the server removes with its own.
    assert [path for path in seen.folder.rglob("*") if path.name.endswith(".npz")] == []


@pytest.fixture
async def seen(own_folder: Path) -> AsyncIterator[Seen]:
    """A reader with default settings."""
    async with reading(own_folder) as found:
        yield found


def _files(seen: Seen) -> list[Path]:
    return list(seen.folder.glob(f"images-{os.getpid()}/*"))


async def _until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


def _num_taken(seen: Seen) -> int:
    """Bytes of the budget that are taken."""
    return seen.pool._space.num_bytes


async def test_image_is_prepared_for_its_model(seen: Seen) -> None:
    (image,) = await seen.read(encoded(picture(640, 480)))
    assert image.expansion == [IDS["<|image_pad|>"]] * 300
    assert image.grid == (1, 15, 20)
    with np.load(image.path, allow_pickle=False) as tensors:
        assert tensors["pixel_values"].shape == (1200, 1536)
        assert tensors["image_grid_thw"].tolist() == [[1, 30, 40]]
    assert image.path.parent == seen.folder / f"images-{os.getpid()}"
    assert seen.results == {"read": 1}


async def test_equal_images_are_read_once_and_kept(seen: Seen) -> None:
    one, other = encoded(), encoded(picture(96, 96))
    first, second, third = await seen.read(one, other, one)
    assert first is third
    assert first.digest != second.digest
    assert (await seen.read(one))[0] is first
    digest = first.digest
    del first, third
    assert (await seen.read(one))[0].digest == digest
    assert seen.results == {"read": 2}


async def test_detail_and_model_are_part_of_the_digest(seen: Seen, own_folder: Path) -> None:
    url = data_url(encoded(picture(1024, 64)))
    high, low = await seen.read(ImageSource(url, False, "a"), ImageSource(url, True, "b"))
    assert (high.grid, low.grid) == ((1, 2, 32), (1, 1, 16))
    assert high.digest != low.digest
    (alone,) = await seen.read(url)
    seen.model_dir = make_vision_directory(own_folder / "other")
    assert (await seen.read(url))[0].digest != alone.digest


@pytest.mark.parametrize(
    ("settings", "sources", "words", "param", "results"),
    [
        ({"max_media": 2}, ["x", "y", "z"], r"at most 2 images \(GENAI_MAX_MEDIA\); given 3", "input[2]", {}),
        (
            {"max_request_pixels": 149},
            [png_header(10, 10), png_header(5, 10)],
            r"at most 149 pixels together \(GENAI_MAX_REQUEST_PIXELS\); given 150",
            "input[1]",
            {},
        ),
        (
            {"max_image_pixels": 100},
            [png_header(11, 10)],
            r"input\[0\] cannot be used: the image may have at most 100 pixels \(GENAI_MAX_IMAGE_PIXELS\); given 11x10",
            "input[0]",
            {"refused": 1},
        ),
        (
            {"max_media_tokens": 299},
            [encoded(picture(640, 480))],
            r"at most 299 tokens \(GENAI_MAX_MEDIA_TOKENS\), given 300",
            "input[0]",
            {"refused": 1},
        ),
    ],
    ids=["images", "pixels together", "pixels", "tokens"],
)
async def test_too_much_is_refused_before_it_is_read_if_possible(
    own_folder: Path,
    settings: dict[str, int],
    sources: list[bytes | str],
    words: str,
    param: str,
    results: dict[str, int],
) -> None:
    async with reading(own_folder, **settings) as seen:
        with pytest.raises(InvalidField, match=words) as refused:
            await seen.read(*sources)
        assert (refused.value.param, seen.results, _files(seen)) == (param, results, [])
        assert seen.processes == [] or "max_media_tokens" in settings


async def test_too_many_tokens_together_are_refused(own_folder: Path) -> None:
    async with reading(own_folder, max_media_tokens=599) as seen:
        one = encoded(picture(640, 480))
        assert len(await seen.read(one)) == 1
        with pytest.raises(InvalidField, match=r"at most 599 tokens together \(GENAI_MAX_MEDIA_TOKENS\); given 600"):
            await seen.read(one, one)


async def test_image_that_cannot_be_decoded_costs_no_process(seen: Seen) -> None:
    good, *bad = encoded(), b"text", encoded()[:60], encoded(format="TIFF")
    for data in bad:
        with pytest.raises(InvalidField, match=r"input\[1\] cannot be used: the image is"):
            await seen.read(good, data)
    assert len(await seen.read(good)) == 1
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
    ("ask", "words", "result", "processes"),
    [
        (_hang, r"takes longer than \d+ s to prepare \(GENAI_MEDIA_TIMEOUT\)", "timed_out", 2),
        (_die, "crashes the process that reads images", "crashed", 3),
    ],
)
async def test_image_that_ends_its_process_is_refused_alone(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, ask: Any, words: str, result: str, processes: int
) -> None:
    monkeypatch.setattr(WorkerProcess, "ask", ask)
    with pytest.raises(InvalidField, match=words) as refused:
        await seen.read(encoded())
    assert refused.value.param == "input[0]"
    await _until(lambda: (_num_taken(seen), _files(seen)) == (0, []))
    monkeypatch.setattr(WorkerProcess, "ask", _ASK)
    assert len(await seen.read(encoded())) == 1
    assert seen.results == {result: 1, "read": 1}
    assert len(seen.processes) == processes


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps to it on Linux")
async def test_memory_of_a_process_is_limited(seen: Seen) -> None:
    await seen.read(encoded())
    process = psutil.Process(seen.processes[0].pid)
    soft, _ = process.rlimit(psutil.RLIMIT_AS)
    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + 30_000_000, soft))
    with pytest.raises(InvalidField, match="memory|is damaged|refused"):
        await seen.read(encoded(picture(4000, 3000)))


@pytest.mark.usefixtures("unforked")
async def test_process_has_no_keys_and_settings(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENAI_API_KEYS", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    await seen.read(encoded())
    environment = psutil.Process(seen.processes[0].pid).environ()
    assert not {"GENAI_API_KEYS", "HF_TOKEN"} & set(environment)


async def test_model_that_cannot_be_loaded_makes_images_unavailable(seen: Seen) -> None:
    (seen.model_dir / "processor_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ImageReaderUnavailable, match="does not start: .*processor"):
        await seen.read(encoded())


@pytest.mark.usefixtures("unforked")
async def test_process_that_cannot_be_started_is_unavailable(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ImageReaderUnavailable, match="no process that reads images can be started: No such file"):
        await seen.read(encoded())


async def test_files_are_removed_beyond_their_limit(own_folder: Path) -> None:
    async with reading(own_folder, encoder_cache_bytes=0) as seen:
        kept = await seen.read(encoded())
        for size in (96, 128, 160):
            await seen.read(encoded(picture(size, size)))
        await _until(lambda: _files(seen) == [kept[0].path])


def test_folders_of_dead_api_processes_are_removed(own_folder: Path) -> None:
    engines = own_folder / "engines"
    gone = psutil.Process().pid
    while psutil.pid_exists(gone):
        gone += 1
    for name in (f"images-{gone}", f"images-{os.getpid()}", f"images-{os.getppid()}", "images-x", "metrics"):
        (engines / name / "inner").mkdir(parents=True)
    Seen(own_folder).close()
    assert sorted(path.name for path in engines.iterdir()) == sorted(["images-x", "metrics", f"images-{os.getppid()}"])


async def test_keys_share_no_images(seen: Seen) -> None:
    (of_alice,) = await seen.read(encoded())
    (of_bob,) = await seen.read(encoded(), requester=BOB)
    assert (of_alice.digest, of_alice.path) != (of_bob.digest, of_bob.path)
    assert of_alice.path != of_bob.path
    assert (await seen.read(encoded()))[0] is of_alice
    assert (await seen.read(encoded(), requester=BOB))[0] is of_bob
    assert seen.results == {"read": 2}


async def test_an_image_with_more_pixels_than_its_head_says_waits_for_its_turn_again(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = []

    def ask(process: WorkerProcess, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
        costs.append(question["max_cost"])
        return _ASK(process, question, data, timeout)

    async with reading(own_folder, max_request_pixels=307_200) as seen:
        monkeypatch.setattr(WorkerProcess, "ask", ask)
        monkeypatch.setattr("genai_server.media.images.reader.declared_size", lambda data: None)
        (image,) = await seen.read(encoded(picture(640, 480)))
        assert image.grid == (1, 15, 20)
        assert len(list(image.path.parent.iterdir())) == 1
        with pytest.raises(InvalidField, match=r"GENAI_MAX_REQUEST_PIXELS\); given 307681"):
            await seen.read(encoded(picture(641, 480)), png_header(1, 1))
    assert costs[:2] == [1, 640 * 480]


# disk space: an image of 512x512 takes 6.3 MB


async def test_an_image_has_space_for_its_file_while_it_is_used(own_folder: Path) -> None:
    async with reading(own_folder, **_SMALL) as seen:
        images = await seen.read(tiles(512, 512, 0), tiles(512, 512, 1))
        await _until(lambda: _num_taken(seen) == sum(path.stat().st_size for path in _files(seen)) > 12_000_000)
        del images[0]
        await _until(lambda: _num_taken(seen) == images[0].num_bytes)
        again = await seen.read(tiles(512, 512, 0))
        assert _num_taken(seen) == images[0].num_bytes  # it was kept
        images.clear()
        del again
        await _until(lambda: _num_taken(seen) == 0)
        assert len(_files(seen)) == 2
    assert seen.results == {"read": 2}


async def test_a_request_that_does_not_fit_is_refused_with_the_limit(own_folder: Path) -> None:
    async with reading(own_folder, **_SMALLER) as seen:
        words = (
            r"images of a request are prepared, they may take at most 10000000 bytes of disk space \(a quarter of "
            r"GENAI_MAX_PREPARED_BYTES\); given 125\d{5}$"
        )
        with pytest.raises(InvalidField, match=words) as refused:
            await seen.read(tiles(512, 512, 0), tiles(512, 512, 1))
        assert refused.value.param == "input[1]"
        await _until(lambda: _num_taken(seen) == 0)


async def test_an_image_that_takes_more_than_expected_is_prepared_with_more(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genai_server.media.images.reader._IMAGE_BYTES", 1000)
    monkeypatch.setattr("genai_server.media.images.reader._PIXEL_BYTES", 1)
    reserved = []
    reserve = SpaceBudget.reserve

    def noted(budget: SpaceBudget, owner: TaskOwner, num_bytes: int) -> Reservation:
        reserved.append(num_bytes)
        return reserve(budget, owner, num_bytes)

    monkeypatch.setattr(SpaceBudget, "reserve", noted)
    async with reading(own_folder, **_SMALL) as seen:
        small, large = await seen.read(tiles(32, 32, 0), tiles(512, 512, 1))
        assert reserved[0] == 2 * 1000 + 32 * 32 + 512 * 512
        assert small.num_bytes + large.num_bytes <= reserved[1] < small.num_bytes + large.num_bytes + 10_000
        await _until(lambda: _num_taken(seen) == small.num_bytes + large.num_bytes)
    assert seen.results["read"] >= 2


async def test_an_image_waits_until_there_is_space(own_folder: Path) -> None:
    async with reading(own_folder, **_SMALLER) as seen:
        held = [await seen.read(tiles(512, 512, number)) for number in range(2)]
        waiting = asyncio.create_task(seen.read(tiles(512, 512, 2)))
        (other,) = await seen.read(tiles(512, 512, 2), requester=BOB)
        assert not waiting.done()
        assert other.num_bytes < 10_000_000
        del held[0]
        await waiting


async def test_whoever_leaves_while_waiting_for_space_or_for_an_image_has_none(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    def ask(process: WorkerProcess, question: Any, data: bytes, timeout: float) -> Any:
        is_asked.set()
        assert may_answer.wait(60)
        return _ASK(process, question, data, timeout)

    monkeypatch.setattr(WorkerProcess, "ask", ask)
    async with reading(own_folder, **_SMALLER) as seen:
        tasks = [asyncio.create_task(seen.read(tiles(512, 512, number))) for number in range(3)]
        await asyncio.to_thread(is_asked.wait, 60)
        assert (_num_taken(seen), len(seen.pool._space._waiting)) == (20_000_000, 1)
        for task in reversed(tasks):
            task.cancel()
        await asyncio.wait(tasks)
        assert len(seen.pool._space._waiting) == 0
        assert _num_taken(seen) > 0  # a process may still write
        may_answer.set()
        await seen.read(tiles(512, 512, 3))
        await _until(lambda: _num_taken(seen) == 0)
        assert len(_files(seen)) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this file")
async def test_a_full_disk_makes_images_unavailable(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(process: WorkerProcess, question: Mapping[str, Any], *rest: Any) -> dict[str, Any]:
        return _ASK(process, {**question, "path": "/dev/full"}, *rest)

    monkeypatch.setattr(WorkerProcess, "ask", ask)
    with pytest.raises(ImageReaderUnavailable, match="cannot be written: No space left on device"):
        await seen.read(encoded())
    monkeypatch.setattr(WorkerProcess, "ask", _ASK)
    await seen.read(encoded())


class _Peak:
    """Measures the most bytes that a folder has at a time, in a thread."""

    def __init__(self, folder: Path) -> None:
        self.num_bytes = 0
        self._folder = folder
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._measure)
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()

    def _measure(self) -> None:
        while not self._ends.wait(0.001):
            found = 0
            for path in self._folder.glob("images-*/*"):
                with contextlib.suppress(FileNotFoundError):
                    found += path.stat().st_size
            self.num_bytes = max(self.num_bytes, found)


def test_a_hundred_uploads_never_take_more_than_the_budget(own_folder: Path) -> None:
    budget = 10_000_000  # an image of 256x256 takes 1.6 MB
    settings = {**_SMALL, "max_prepared_bytes": budget, "encoder_cache_bytes": 0}
    ended: Counter[str] = Counter()
    num_left, num_held = 100, 0

    async def work(seen: Seen) -> None:
        with (
            closing(SupervisorServer(seen.folder, "secret", lambda: seen.pool)),
            closing(SupervisorClient(partial(read_address, seen.folder))) as supervisor,
            closing(_Peak(seen.folder)) as peak,
            # Others than those of the event loop, which the reader needs.
            ThreadPoolExecutor(100) as holders,
        ):
            seen.images._workers = supervisor.workers

            async def upload(number: int) -> None:
                nonlocal num_left, num_held
                owner = Requester(TaskOwner(f"key {number % 4}", f"{number}"), f"{number % 4}")
                files = [tiles(256, 256, number), tiles(256, 256, number + 100)]
                images: list[PreparedImage] = []
                try:
                    images = await seen.read(*(files if number % 10 == 5 else files[:1]), requester=owner)
                    num_held += 1
                    # Held as long as nobody waits for the space.
                    await asyncio.get_running_loop().run_in_executor(
                        holders, wait_until, lambda: num_held >= num_left or bool(seen.pool._space._waiting)
                    )
                    ended["read"] += 1
                except InvalidField as error:
                    assert "GENAI_MAX_PREPARED_BYTES" in error.message
                    ended["refused"] += 1
                finally:
                    num_left, num_held = num_left - 1, num_held - bool(images)
                    images.clear()  # the exception of a cancelled task keeps its variables
                    if number % 7 == 0:
                        uploads[number - 1].cancel()

            uploads = [asyncio.create_task(upload(number)) for number in range(100)]
            await asyncio.wait(uploads)
            assert {type(error) for task in uploads if not task.cancelled() and (error := task.exception())} == set()
            # The exception of one that was cancelled between its two images keeps the first.
            uploads.clear()
            await _until(lambda: _num_taken(seen) == 0)
            assert _files(seen) == []
            assert ended["refused"] > 0
            assert ended["read"] > 70
            assert 1_500_000 < peak.num_bytes <= budget

    seen = Seen(own_folder, **settings)

    async def main() -> None:
        with closing(seen.images):
            await work(seen)

    asyncio.run(main())
    assert [process.pid for process in seen.processes if process.is_alive] == []


async def test_a_process_started_in_advance_reads_the_first_image(seen: Seen) -> None:
    for _ in range(2):
        await seen.images.start(seen.model)
    await seen.read(encoded())
    assert len(seen.processes) == 1


async def test_failure_of_a_start_in_advance_is_logged(
    seen: Seen, own_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (seen.model_dir / "processor_config.json").write_text("{", encoding="utf-8")
    await seen.images.start(seen.model)
    assert f"no process for the images of {own_folder / 'model'}: " in caplog.text


def _image_process(folder: Path) -> WorkerProcess:
    model_dir = make_vision_directory(folder / "model")
    spec = {"model_dir": str(model_dir), "folder": str(folder), "max_pixels": 10_000, "max_tokens": 99}
    return WorkerProcess(READ_IMAGE, spec | {"medium": "image", "max_seconds": 1})


def _question(folder: Path) -> dict[str, Any]:
    return {"path": str(folder / "a.npz"), "low_detail": False, "max_cost": 10_000, "max_bytes": 10_000_000}


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
    assert process._process.wait(90) == 0
    process.end()


async def test_few_images_are_fetched_at_a_time(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0

    async def load(url: str, *arguments: Any, **options: Any) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        raise InvalidField("p", "gone")

    monkeypatch.setattr("genai_server.media.images.reader.load_image", load)
    async with reading(own_folder, max_media=100, image_hosts="images.example") as seen:
        asked = (seen.read(f"http://images.example/{number}") for number in range(30))
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(error, InvalidField) for error in found)
    assert most == 8
