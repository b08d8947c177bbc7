"""Recordings without FFmpeg's libraries."""

import asyncio
import gc
import importlib.util
import itertools
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from genai_server.config.media_settings import BYTES_PER_SECOND
from genai_server.config.settings import Settings
from genai_server.errors import AudioReaderUnavailable, InvalidField, TaskUnsupported
from genai_server.media.audio import recordings
from genai_server.media.audio.recordings import SHORT, Recording, Recordings, Window
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.model_files.speech_and_vision import SpeechModel, read_speech_model
from genai_server.workers.pool import WorkerLimits, WorkerPool
from genai_server.workers.process import WorkerProcess
from genai_server.workers.tasks import Requester, TaskKind
from tests.media.audio.sounds import RATE, Samples, encoded, sentence, silence, tone
from tests.media.audio.speech_directory import make_speech_directory
from tests.running_server import PATIENCE, wait_until


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    recordings.is_installed.cache_clear()
    yield
    recordings.is_installed.cache_clear()


def test_recording_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TaskUnsupported, match="without the extra audio") as refused:
        recordings.require_decoder("messages[0].content[1].input_audio.data")
    assert refused.value.param == "messages[0].content[1].input_audio.data"


def test_installed_extra_decodes() -> None:
    recordings.require_decoder("file")


_ASK = WorkerProcess.ask

pytestmark = pytest.mark.anyio
ALICE, BOB = (Requester(TaskOwner(name, f"{name}'s")) for name in ("alice", "bob"))


class Seen:
    """Recordings, what was counted, and a model for windows of 10 s. To be used and closed in an event loop."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.results: Counter[str] = Counter()
        self.folder = folder / "engines"
        self.folder.mkdir(exist_ok=True)
        self.uploads = (folder / f"upload-{number}" for number in itertools.count())
        if not (folder / "model").exists():
            make_speech_directory(folder / "model", seconds=10)
        # Decoding takes as long as the machine is slow, so that only tests of that limit have a short one.
        checked = Settings.model_validate({"audio_timeout": PATIENCE} | settings)
        self.pool = WorkerPool(WorkerLimits.of(checked), self._start)
        # The processes that were started, and their kinds.
        self.processes: list[WorkerProcess] = []
        self.kinds: list[str] = []
        self.recordings = Recordings(self.pool, checked, self.folder, self._count)

    def close(self) -> None:
        """End the processes and remove the files."""
        self.recordings.close()
        self.pool.close()

    def model(self, directory: Path | None = None) -> SpeechModel:
        """The model of a directory."""
        found = read_speech_model(directory or self.folder.parent / "model")
        assert found is not None
        return found

    async def open(
        self, sound: Samples | bytes, model: SpeechModel | None = None, requester: Requester = ALICE
    ) -> Recording:
        """Open a recording, whose file is then gone."""
        upload = next(self.uploads)
        upload.write_bytes(sound if isinstance(sound, bytes) else encoded(sound))
        try:
            return await self.recordings.open(model or self.model(), upload, requester, param="file")
        finally:
            assert not upload.exists()

    def files(self) -> list[str]:
        """Endings of the files in the folder of this process."""
        return sorted(path.suffix for path in (self.folder / f"recordings-{os.getpid()}").iterdir())

    def _start(self, kind: TaskKind, spec: Mapping[str, Any]) -> WorkerProcess:
        self.kinds.append(kind.name)
        self.processes.append(WorkerProcess(kind, spec))
        return self.processes[-1]

    def _count(self, result: str) -> None:
        self.results[result] += 1


@asynccontextmanager
async def reading(folder: Path, **settings: Any) -> AsyncIterator[Seen]:
    """Recordings with these settings, whose processes and files are gone at the end."""
    with closing(Seen(folder, **settings)) as seen:
        yield seen
    # One that was starting when the pool was closed is ended as soon as it has started.
    await asyncio.to_thread(wait_until, lambda: not any(process.is_alive for process in seen.processes))
    assert list(seen.folder.iterdir()) == []


@pytest.fixture
async def seen(own_folder: Path) -> AsyncIterator[Seen]:
    """Recordings with default settings."""
    async with reading(own_folder) as found:
        yield found


def _samples(*parts: Samples) -> Samples:
    return np.concatenate(parts)


async def _windows(recording: Recording) -> list[Window]:
    """All windows, one after the other."""
    found: list[Window] = []
    while (window := await recording.window(found[-1].end if found else 0)) is not None:
        found.append(window)
    return found


async def test_windows_have_speech_and_its_surroundings(seen: Seen) -> None:
    length = len(sentence()) / RATE
    with await seen.open(_samples(silence(5), sentence(), silence(30), sentence(), silence(1))) as recording:
        assert recording.duration == pytest.approx(36 + 2 * length)
        first, second = await _windows(recording)
        assert 3.8 < first.start < 4.4
        assert first.start + length - 0.3 < first.end < 6.3 + length
        assert 33.8 + length < second.start < 34.4 + length
        assert second.start + length - 0.3 < second.end <= recording.duration
        with np.load(first.path, allow_pickle=False) as tensors:
            features = tensors["audio_features"]
            assert (features.shape, features.dtype) == ((1, 80, 1000), np.float32)
        assert first.digest != second.digest
    assert seen.results == {"decoded": 1}


async def test_long_speech_is_cut_in_a_pause(seen: Seen) -> None:
    pause = silence(0.5)
    with await seen.open(_samples(*([sentence(), pause] * 4))) as recording:
        first, second = await _windows(recording)
        two = 2 * len(_samples(sentence(), pause)) / RATE
        assert two - 0.7 < first.end < two
        assert first.end <= second.start < two + 0.1
        assert second.end > 2 * two - 0.7


async def test_recording_without_speech_has_no_window(seen: Seen) -> None:
    with await seen.open(tone(20)) as recording:
        assert [await recording.window(start) for start in (0, 20, 1e9)] == [None] * 3


async def test_search_continues_after_a_long_silence(seen: Seen) -> None:
    with await seen.open(_samples(silence(300), sentence())) as recording:
        assert 298.8 < (await _windows(recording))[0].start < 299.4


async def test_equal_windows_of_a_model_have_equal_digests(seen: Seen, own_folder: Path) -> None:
    other = seen.model(make_speech_directory(own_folder / "other", seconds=10))
    digests = []
    for model, samples in ((None, sentence()), (None, sentence()), (None, sentence() // 2), (other, sentence())):
        with await seen.open(samples, model=model) as recording:
            digests.append((await _windows(recording))[0].digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


async def test_files_exist_as_long_as_they_are_used(seen: Seen) -> None:
    recording = await seen.open(sentence())
    window = await recording.window(0)
    assert window is not None
    assert seen.files() == [".npz", ".pcm"]
    assert oct(window.path.parent.stat().st_mode & 0o777) == "0o700" or sys.platform == "win32"
    recording.close()
    assert seen.files() == [".npz"]
    del window
    gc.collect()
    assert seen.files() == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is an empty file"),
        (b"text" * 100, "is not a flac, mp3, "),
        (encoded(tone(61)), r"may be at most 60 s long \(GENAI_MAX_AUDIO_SECONDS\), given 61 s"),
    ],
)
async def test_unusable_recording_costs_no_process(own_folder: Path, data: bytes, words: str) -> None:
    async with reading(own_folder, max_audio_seconds=60) as seen:
        (await seen.open(tone(1))).close()
        (process,) = seen.processes
        with pytest.raises(InvalidField, match=f"file cannot be used: the recording {words}") as refused:
            await seen.open(data)
        assert (refused.value.param, seen.files()) == ("file", [])
        (await seen.open(tone(1))).close()
        assert seen.processes == [process]
        assert process.is_alive
    assert seen.results == {"refused": 1, "decoded": 2}


def _hang(process: WorkerProcess, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
    Path(question["target"]).write_bytes(b"a part")
    os.kill(process.pid, signal.SIGSTOP)
    return _ASK(process, question, data, min(timeout, 1))


def _die(process: WorkerProcess, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
    Path(question["target"]).write_bytes(b"a part")
    os.kill(process.pid, signal.SIGKILL)
    return _ASK(process, question, data, timeout)


_ENDS = [
    (_hang, r"takes longer than \d+ s to .* \(GENAI_AUDIO_TIMEOUT\)", "timed_out"),
    (_die, "crashes the process that", "crashed"),
]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize(("ask", "words", "result"), _ENDS)
async def test_recording_that_ends_its_process_is_refused_alone(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, ask: Any, words: str, result: str
) -> None:
    monkeypatch.setattr(WorkerProcess, "ask", ask)
    with pytest.raises(InvalidField, match=f"file cannot be used: the recording {words}") as decoding:
        await seen.open(sentence())
    assert (decoding.value.param, seen.files()) == ("file", [])
    monkeypatch.setattr(WorkerProcess, "ask", _ASK)
    with await seen.open(sentence()) as recording:
        monkeypatch.setattr(WorkerProcess, "ask", ask)
        words = rf"file cannot be used: the recording {words}.*, from 1\.50 s on"
        with pytest.raises(InvalidField, match=words) as reading:
            await recording.window(1.5)
        assert (reading.value.param, seen.files()) == ("file", [".pcm"])
        monkeypatch.setattr(WorkerProcess, "ask", _ASK)
        assert await recording.window(1.5) is not None
    assert seen.results == {result: 1, "decoded": 1}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such signal")
@pytest.mark.parametrize("seconds", [1, SHORT + 1])
async def test_client_that_leaves_leaves_no_files(
    seen: Seen, own_folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    asked = asyncio.Event()
    stopped: list[WorkerProcess] = []
    loop = asyncio.get_running_loop()

    def stop(process: WorkerProcess, question: Any, data: bytes, timeout: float) -> dict[str, Any]:
        if question["seconds"] > SHORT or seconds < SHORT:
            os.kill(process.pid, signal.SIGSTOP)
            stopped.append(process)
            loop.call_soon_threadsafe(asked.set)
        return _ASK(process, question, data, timeout)

    monkeypatch.setattr(WorkerProcess, "ask", stop)
    upload = own_folder / "upload"
    upload.write_bytes(encoded(silence(seconds)))
    opening = asyncio.create_task(seen.recordings.open(seen.model(), upload, ALICE, param="file"))
    await asked.wait()
    for _ in range(2):
        opening.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not upload.exists()
    (process,) = stopped
    if seconds > SHORT:  # what may take minutes is ended
        await asyncio.to_thread(wait_until, lambda: not process.is_alive)
    else:
        os.kill(process.pid, signal.SIGCONT)
    monkeypatch.setattr(WorkerProcess, "ask", _ASK)
    (await seen.open(sentence())).close()
    await asyncio.to_thread(wait_until, lambda: seen.files() == [])
    assert seen.results == {"decoded": 1}


async def test_window_that_nobody_waits_for_leaves_no_file(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    with await seen.open(sentence()) as recording:
        loop, answered, cancelled = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def ask(process: WorkerProcess, question: Any, data: bytes, timeout: float) -> dict[str, Any]:
            answer = _ASK(process, question, data, timeout)
            loop.call_soon_threadsafe(answered.set)
            asyncio.run_coroutine_threadsafe(cancelled.wait(), loop).result()
            return answer

        monkeypatch.setattr(WorkerProcess, "ask", ask)
        task = asyncio.create_task(recording.window(0))
        await answered.wait()
        assert seen.files() == [".npz", ".pcm"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()
        assert seen.files() == [".pcm"]


async def test_full_disk_makes_recordings_unavailable(seen: Seen) -> None:
    recording = await seen.open(sentence())
    recording._decoded.path.unlink()
    with pytest.raises(AudioReaderUnavailable, match="a recording cannot be read: No such file"):
        await recording.window(0)
    folder = seen.folder / f"recordings-{os.getpid()}"
    (folder / "5.pcm").mkdir()
    while True:
        try:
            (await seen.open(sentence())).close()
        except AudioReaderUnavailable as error:
            assert "a decoded recording cannot be written: Is a directory" in error.message
            break


async def test_model_that_cannot_be_loaded_makes_windows_unavailable(seen: Seen, own_folder: Path) -> None:
    with await seen.open(sentence()) as recording:
        (own_folder / "model" / "audio_processor_config.json").write_text("{", encoding="utf-8")
        with pytest.raises(AudioReaderUnavailable, match="process that reads recordings does not start: "):
            await recording.window(0)


@pytest.mark.usefixtures("unforked")
async def test_process_that_cannot_be_started_is_unavailable(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(AudioReaderUnavailable, match="no process that decodes recordings can be started: No such"):
        await seen.open(sentence())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel keeps to it on Linux")
async def test_memory_of_a_decoder_is_limited(seen: Seen) -> None:
    (await seen.open(tone(1))).close()
    (decoder,) = seen.processes
    process = psutil.Process(decoder.pid)
    soft, _ = process.rlimit(psutil.RLIMIT_AS)
    assert 0 < soft - process.memory_info().vms < 1024**3


async def test_ten_recordings_are_decoded_at_a_time(seen: Seen, own_folder: Path) -> None:
    async def read(number: int) -> float:
        file = own_folder / f"sound-{number}"
        file.write_bytes(encoded(_samples(sentence(), silence(number))))
        with await seen.recordings.open(seen.model(), file, ALICE, param="file") as recording:
            assert len(await _windows(recording)) == 1
            return recording.duration - len(sentence()) / RATE

    found = await asyncio.gather(*(read(number) for number in range(10)))
    assert found == pytest.approx(list(range(10)))
    assert seen.results == {"decoded": 10}


async def test_short_recordings_do_not_wait_for_long_ones(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    def held(process: WorkerProcess, question: Any, data: bytes, timeout: float) -> dict[str, Any]:
        if question["seconds"] > SHORT:
            assert goes_on.wait(60)
        return _ASK(process, question, data, timeout)

    monkeypatch.setattr(WorkerProcess, "ask", held)
    long = encoded(silence(SHORT + 1))
    waiting = [asyncio.create_task(seen.open(long)) for _ in range(3)]
    await asyncio.to_thread(wait_until, lambda: "decode_long" in seen.kinds)
    (await seen.open(sentence())).close()
    assert not any(task.done() for task in waiting)
    goes_on.set()
    for recording in await asyncio.gather(*waiting):
        assert recording.duration == SHORT + 1
        recording.close()
    assert seen.kinds.count("decode_long") == 1
    assert seen.results == {"decoded": 4}


async def test_decoded_recordings_never_exceed_their_space(own_folder: Path) -> None:
    seconds = SHORT + 80
    longest = seconds * BYTES_PER_SECOND
    async with reading(own_folder, max_audio_seconds=seconds, max_prepared_bytes=4 * longest) as seen:
        largest = 0

        async def attack(file: bytes) -> None:
            nonlocal largest
            with await seen.open(file):
                largest = max(largest, _num_bytes(seen))
                await asyncio.sleep(0)

        attacking = [asyncio.create_task(attack(encoded(silence(seconds), "flac", "flac"))) for _ in range(8)]
        with await seen.open(sentence(), requester=BOB):
            largest = max(largest, _num_bytes(seen))
        await asyncio.gather(*attacking)
        assert longest <= largest <= 4 * longest


async def test_a_recording_of_another_key_has_space_at_once(own_folder: Path) -> None:
    seconds = SHORT + 80
    longest = seconds * BYTES_PER_SECOND
    async with reading(own_folder, max_audio_seconds=seconds, max_prepared_bytes=4 * longest) as seen:
        held = [await seen.open(silence(seconds)) for _ in range(2)]
        waiting = asyncio.create_task(seen.open(silence(seconds)))
        with await seen.open(silence(seconds), requester=BOB):
            assert not waiting.done()
        for recording in held:
            recording.close()
        (await waiting).close()


def _num_bytes(seen: Seen) -> int:
    folder = seen.folder / f"recordings-{os.getpid()}"
    return sum(path.stat().st_size for path in folder.iterdir())
