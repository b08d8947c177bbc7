"""Decodes recordings in separate processes."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from genai_server.config.environment import untrusted_work_environment
from genai_server.config.settings import Settings
from genai_server.errors import AudioReaderUnavailable, InvalidField
from genai_server.process_pool import Outcome, ProcessDied, ProcessPool, ProcessTimeout, WorkerProcess

# Bytes of a large file: about two minutes of WAV as it is recorded, or ten of compressed sound. These have processes of
# their own: the longest recordings take some ten seconds, for which others must not wait.
_LARGE = 8 * 1024 * 1024
# The results of decoding a recording.
RESULTS = ("decoded", "refused", "crashed", "timed_out")
# Bytes of a file, and seconds of a recording, for each second that decoding may take.
_BYTES_PER_SECOND, _SECONDS_PER_SECOND = 15_000, 20
_CRASHES = "crashes the process that decodes recordings, or exceeds its memory limit"


class _DecodeProcess(WorkerProcess):
    module, purpose = "genai_server.audio.decode_process", "decodes recordings"
    unavailable = AudioReaderUnavailable


@dataclass(frozen=True)
class Decoded:
    """A recording as a file of mono PCM with 16 bits and 16 kHz."""

    path: Path
    num_samples: int
    # The peak amplitude.
    peak: int


_Pool = ProcessPool[_DecodeProcess, Outcome[Decoded]]


class Decoder:
    """Decodes the recordings of all models. Belongs to the event loop; must be closed.

    `count` is called with the result of each recording, one of RESULTS.
    """

    def __init__(self, settings: Settings, count: Callable[[str], None] = lambda result: None) -> None:
        self._settings = settings
        self._count = count
        spec = {"max_seconds": settings.max_audio_seconds}
        start = partial(_DecodeProcess, untrusted_work_environment(), spec)
        self._small, self._large = (_Pool(_DecodeProcess, start) for _ in range(2))

    async def decode(self, file: Path, target: Path, *, param: str) -> Decoded:
        """Decode a recording into `target`, and remove its file. A caller that is cancelled ends the process.

        Raises InvalidField, which names `param`, and AudioReaderUnavailable.
        """
        job = _Job(file, target)
        try:
            size = (await asyncio.to_thread(file.stat)).st_size
            pool = self._large if size > _LARGE else self._small
            found = await pool.call(
                str(target).encode(), partial(self._decode, job, pool), lambda found: self._count(found.result)
            )
        except BaseException:
            await asyncio.shield(asyncio.to_thread(job.abandon))
            raise
        if found.value is None:
            raise InvalidField(f"{param}: the recording {found.reason}", param=param)
        return found.value

    def close(self) -> None:
        """End the processes. Blocks until they have ended."""
        self._small.close()
        self._large.close()

    def _timeout(self, file: Path) -> float:
        most = self._settings.max_audio_seconds / _SECONDS_PER_SECOND
        return self._settings.audio_timeout + min(file.stat().st_size / _BYTES_PER_SECOND, most)

    def _decode(self, job: "_Job", pool: _Pool) -> Outcome[Decoded]:
        """Decode a recording, in one of the threads."""
        try:
            timeout = self._timeout(job.file)
            answer = pool.with_process(lambda process: job.ask(process, timeout))
        except ProcessTimeout:
            return Outcome("timed_out", f"takes longer than {timeout:.0f} s to decode (GENAI_AUDIO_TIMEOUT)")
        except ProcessDied:
            return Outcome("crashed", _CRASHES)
        finally:
            job.remove_files()
        if reason := answer.get("unavailable"):
            raise AudioReaderUnavailable(f"a decoded recording cannot be written: {reason}")
        if reason := answer.get("refused"):
            return Outcome("refused", reason)
        return Outcome("decoded", value=Decoded(job.target, answer["num_samples"], answer["peak"]))


class _Job:
    """A recording to decode. Any thread may call the methods."""

    def __init__(self, file: Path, target: Path) -> None:
        self.file = file
        self.target = target
        self._lock = threading.Lock()
        # While it decodes this recording.
        self._process: WorkerProcess | None = None
        self._is_decoded = False
        self._is_abandoned = False

    def ask(self, process: WorkerProcess, timeout: float) -> Mapping[str, Any]:
        """Let a process decode the recording. Raises as WorkerProcess.ask does."""
        with self._lock:
            if self._is_abandoned:
                return {"refused": "is not needed any more"}
            self._process = process
        try:
            question = {"path": str(self.file), "target": str(self.target)}
            answer = process.ask(question, b"", timeout)
        finally:
            with self._lock:
                self._process = None
        self._is_decoded = "num_samples" in answer
        return answer

    def abandon(self) -> None:
        """End the process that decodes the recording, if there is one, and remove the files."""
        with self._lock:
            self._is_abandoned = True
            if self._process is not None:
                self._process.end()
        self.remove_files()

    def remove_files(self) -> None:
        """Remove the recording's file, and what is decoded of it unless that is needed."""
        with contextlib.suppress(OSError):  # the process that is about to end has it open, on Windows
            self.file.unlink(missing_ok=True)
        if self._is_abandoned or not self._is_decoded:
            with contextlib.suppress(OSError):
                self.target.unlink(missing_ok=True)
