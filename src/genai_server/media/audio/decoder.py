"""Decodes recordings in worker processes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from genai_server.config.media_settings import BYTES_PER_SECOND
from genai_server.config.settings import Settings
from genai_server.errors import AudioReaderUnavailable, InvalidField
from genai_server.messages.worker_tasks import Task
from genai_server.model_files.speech_model import SAMPLE_RATE, longest_audio
from genai_server.workers.pool import remove
from genai_server.workers.process import ProcessDied, ProcessTimeout
from genai_server.workers.task_kinds import DECODE, DECODE_LONG, TaskKind
from genai_server.workers.workers import Answer, Requester, Space, Workers

# Seconds of a recording that are decoded in turn with all other tasks. A longer one is decoded again as a task that may
# take minutes, for which others must not wait. Whether it is longer, its file does not say: 7,000 seconds of silence
# have 1.3 MB.
SHORT = 120
# The results of decoding a recording.
RESULTS = ("decoded", "refused", "crashed", "timed_out")
# Bytes of a file, and seconds of a recording, for each second that decoding may take.
_BYTES_PER_SECOND, _SECONDS_PER_SECOND = 15_000, 20
_CRASHES = "crashes the process that decodes recordings, or exceeds its memory limit"


@dataclass(frozen=True)
class Decoded:
    """A decoded recording: a file of mono PCM with 16 bits at 16 kHz. The file occupies `space` until it is
    closed.
    """

    path: Path
    num_samples: int
    # The peak amplitude.
    peak: int
    space: Space

    def close(self) -> None:
        """Remove the file and return the disk space."""
        remove(str(self.path))
        self.space.release()


@dataclass(frozen=True)
class _Outcome:
    """The result of decoding a recording: the decoded recording, or the reason why it cannot be used."""

    # One of RESULTS.
    result: str
    # Why it cannot be used.
    reason: str = ""
    decoded: Decoded | None = None


class Decoder:
    """Decodes the recordings for all models of this API process. For use in the event loop only.

    `count` is called with the result of each recording, one of RESULTS.
    """

    def __init__(
        self, workers: Workers, settings: Settings, count: Callable[[str], None] = lambda result: None
    ) -> None:
        self._workers = workers
        self._settings = settings
        self._count = count

    async def decode(self, file: Path, target: Path, requester: Requester, *, param: str) -> Decoded:
        """Decode a recording into the file `target`, and remove the recording's own file.

        Waits until there is disk space for the samples. Cancelling the caller ends the worker process. Raises
        InvalidField, which names `param`, AudioReaderUnavailable, and QueueFull if too many recordings wait.
        """
        max_seconds = self._settings.max_audio_seconds
        try:
            size = (await asyncio.to_thread(file.stat)).st_size
            outcome = await self._decode(DECODE, file, target, requester, size, min(SHORT, max_seconds))
            if outcome is None:
                outcome = await self._decode(DECODE_LONG, file, target, requester, size, max_seconds)
        finally:
            remove(str(file))
        assert outcome is not None, "a decoder refuses what is longer than it may be"
        self._count(outcome.result)
        if outcome.decoded is None:
            raise InvalidField(param, f"cannot be used: the recording {outcome.reason}")
        return outcome.decoded

    async def _decode(
        self, kind: TaskKind, file: Path, target: Path, requester: Requester, size: int, seconds: int
    ) -> _Outcome | None:
        """Decode at most `seconds` of a recording whose file has `size` bytes, in a worker process.

        None if the recording is longer, or if decoding takes too long although `seconds` is less than the maximum.
        """
        settings, is_whole = self._settings, seconds == self._settings.max_audio_seconds
        timeout = float(settings.audio_timeout)
        if is_whole:
            timeout += min(size / _BYTES_PER_SECOND, settings.max_audio_seconds / _SECONDS_PER_SECOND)
        space = await self._workers.reserve_space(requester.owner, seconds * BYTES_PER_SECOND, AudioReaderUnavailable)
        task = Task(
            kind.name,
            requester.owner,
            {"max_seconds": settings.max_audio_seconds, "gives_way": kind.is_long},
            {"path": str(file), "target": str(target), "seconds": seconds},
            timeout=timeout,
            cost=longest_audio(size, settings.max_audio_seconds),
            target=str(target),
        )
        decoded = None
        try:
            (answer,) = space.submit([task])
            outcome = self._outcome(await answer, target, space)
            decoded = None if outcome is None else outcome.decoded
            return outcome
        except ProcessTimeout:
            if not is_whole:
                return None
            return _Outcome("timed_out", f"takes longer than {timeout:.0f} s to decode (GENAI_AUDIO_TIMEOUT)")
        except ProcessDied:
            return _Outcome("crashed", _CRASHES)
        finally:
            if decoded is None:
                remove(str(target))
                space.release()

    def _outcome(self, answer: Answer, target: Path, space: Space) -> _Outcome | None:
        if reason := answer.get("unavailable"):
            raise AudioReaderUnavailable(f"a decoded recording cannot be written: {reason}")
        if reason := answer.get("refused"):
            return _Outcome("refused", str(reason))
        if answer.get("is_longer"):
            return None
        num_samples = int(answer["num_samples"])
        space.shrink(max(1, num_samples) * BYTES_PER_SECOND // SAMPLE_RATE)
        return _Outcome("decoded", decoded=Decoded(target, num_samples, answer["peak"], space))
