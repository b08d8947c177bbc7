"""The recordings of requests for speech models. `Recordings.open` has a worker process decode a recording once, and
`Recording.window` then reads it part by part: a window has at most the length of the model's input.

Worker processes do the work because a damaged recording may crash them. FFmpeg's libraries, which decode, are an
optional extra because of their size.
"""

import asyncio
import importlib.util
import itertools
import shutil
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from genai_server.config.media_settings import BYTES_PER_SECOND
from genai_server.config.settings import Settings
from genai_server.errors import AudioReaderUnavailable, InvalidField, TaskUnsupported
from genai_server.media.audio.detection import Detection
from genai_server.messages.supervisor_protocol import Task
from genai_server.model_files.speech_and_vision import SAMPLE_RATE, SpeechModel, longest_audio
from genai_server.system.processes import own_folder
from genai_server.workers.pool import remove
from genai_server.workers.process import ProcessDied, ProcessTimeout
from genai_server.workers.tasks import DECODE, DECODE_LONG, READ_WINDOW, Answer, Requester, Space, TaskKind, Workers

EXTRA = "audio"


@cache
def is_installed() -> bool:
    """Whether FFmpeg's libraries, which decode recordings, are installed (with this package's extra `audio`)."""
    return importlib.util.find_spec("av") is not None


def require_decoder(param: str) -> None:
    """Raise TaskUnsupported, which names the field `param`, if FFmpeg's libraries, which decode recordings, are not
    installed.
    """
    if not is_installed():
        raise TaskUnsupported(
            param,
            f"cannot be used: this server cannot decode recordings, because it is installed without the extra {EXTRA}",
        )


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
    """A decoded recording: the file `path` with mono PCM of 16 bits at 16 kHz. Decoder creates it.

    `num_samples` is the number of samples, and `peak` their peak amplitude (at most 32768). The file occupies the
    reserved disk space `space` until the object is closed.
    """

    path: Path
    num_samples: int
    # The peak amplitude.
    peak: int
    space: Space

    def close(self) -> None:
        """Remove the file and give the disk space back."""
        remove(str(self.path))
        self.space.release()


@dataclass(frozen=True)
class _Outcome:
    """The result of decoding a recording: the decoded recording, or the reason why it cannot be used.

    `result` is one of RESULTS, `reason` the end of a sentence that begins with "the recording", and `decoded` is None
    if the recording cannot be used.
    """

    # One of RESULTS.
    result: str
    # Why it cannot be used.
    reason: str = ""
    decoded: Decoded | None = None


class Decoder:
    """Decodes the recordings of all requests to this API process, in worker processes. For use in the event loop only.

    `workers` is the pool of worker processes. `count` is called with the result of each recording, one of RESULTS.
    """

    def __init__(
        self, workers: Workers, settings: Settings, count: Callable[[str], None] = lambda result: None
    ) -> None:
        self._workers = workers
        self._settings = settings
        self._count = count

    async def decode(self, file: Path, target: Path, requester: Requester, *, param: str) -> Decoded:
        """Decode the recording in `file` into the new file `target`. `file` is removed, also in case of an error.

        `requester` is the request, whose API key takes its turn in the queue of worker processes. Waits until there is
        disk space for the samples. Cancelling the caller ends the worker process. Raises InvalidField, which names the
        field `param`, if the recording cannot be used, AudioReaderUnavailable if no worker process can be started or
        the disk is full, and QueueFull if too many recordings wait.
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
        """Decode at most `seconds` of the recording `file`, of `size` bytes, into the file `target`, in a worker
        process.

        `kind` is the kind of the task: for short or for long recordings. Returns None if a longer attempt is needed:
        the recording is longer, or decoding takes too long although `seconds` is less than the maximum. Raises
        AudioReaderUnavailable and QueueFull.
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


@dataclass(frozen=True, eq=False)
class Window:
    """A part of a recording, prepared as input of a speech model. `Recording.window` returns it.

    `start` and `end` are seconds in the recording. `path` is a file with the spectrogram, which is removed when the
    object is garbage-collected. `digest` identifies samples and model, and `is_cut` says that the window ends within
    speech.
    """

    # Seconds in the recording.
    start: float
    end: float
    # A .npz file with the float32 array `audio_features` [1, mels, frames] of onnxruntime-genai's processor.
    path: Path
    # SHA-256 in hex of the samples and the model.
    digest: str
    # Whether it ends within speech.
    is_cut: bool = False

    def __post_init__(self) -> None:
        weakref.finalize(self, self.path.unlink, missing_ok=True)


class WindowReader:
    """Prepares windows of recordings for all speech models, in worker processes. For use in the event loop only.

    `workers` is the pool of worker processes, which may write temporary files to `folder`.
    """

    def __init__(self, workers: Workers, settings: Settings, folder: Path) -> None:
        self._workers = workers
        self._settings = settings
        self._folder = folder

    async def read(
        self, model: SpeechModel, question: dict[str, Any], requester: Requester, *, param: str
    ) -> Window | int:
        """Have a worker process find and prepare the next window with speech, and return the window.

        If a long stretch of the recording has no speech, the index of the sample at which the stretch ends is returned
        instead. `question` is what the worker process receives (see window_process.py), and `requester` the request.
        Raises InvalidField, which names the field `param`, if the recording cannot be read in time or crashes the
        process, and AudioReaderUnavailable if no process can be started or its file cannot be read or written.
        """
        timeout, target = self._settings.audio_timeout, Path(question["target"])
        spec = {
            "model_dir": str(model.directory),
            "window_samples": round(model.window_seconds * SAMPLE_RATE),
            "max_seconds": self._settings.max_audio_seconds,
            "folder": str(self._folder),
        }
        window = None
        try:
            (answer,) = self._workers.submit(
                [Task(READ_WINDOW.name, requester.owner, spec, question, timeout=timeout, target=str(target))]
            )
            result = await answer
            if reason := result.get("unavailable", ""):
                raise AudioReaderUnavailable(f"a recording cannot be read: {reason}")
            if "silent_until" in result:
                return int(result["silent_until"])
            start, end = (result[name] / SAMPLE_RATE for name in ("begin", "end"))
            window = Window(start, end, target, result["digest"], result["is_cut"])
            return window
        except ProcessTimeout:
            reason = f"takes longer than {timeout} s to read (GENAI_AUDIO_TIMEOUT)"
        except ProcessDied:
            reason = "crashes the process that reads recordings, or exceeds its memory limit"
        finally:
            if window is None:
                remove(str(target))
        seconds = question["start"] / SAMPLE_RATE
        raise InvalidField(param, f"cannot be used: the recording {reason}, from {seconds:.2f} s on")


# Name of the folder in the engines' folder.
_FOLDER = "recordings"
_DETECTION = Detection()


class Recording:
    """A decoded recording, which is read window by window. `Recordings.open` creates it. For use in the event loop
    only.

    Its file exists until `close`; the object is also a context manager, which closes it. `param` is the recording's
    field in the request, for error messages.
    """

    def __init__(
        self,
        recordings: "Recordings",
        model: SpeechModel,
        decoded: Decoded,
        requester: Requester,
        param: str,
        detection: Detection,
    ) -> None:
        self._recordings = recordings
        self._model = model
        self._decoded = decoded
        self._requester = requester
        self._param = param
        self._detection = detection

    @property
    def duration(self) -> float:
        """The length of the recording in seconds."""
        return self._decoded.num_samples / SAMPLE_RATE

    async def window(self, start: float) -> Window | None:
        """Return the next part of the recording with speech, from `start` seconds on; None if no speech follows.

        The window is at most as long as the model's input. It begins shortly before the first speech, and ends in a
        pause if there is one near the maximum length. Raises InvalidField, which names the recording's field, if the
        recording cannot be read, and AudioReaderUnavailable if no worker process can be started or the disk is full.
        """
        sample = max(0, round(start * SAMPLE_RATE))
        while sample < self._decoded.num_samples:
            result = await self._recordings.read_window(
                self._model, self._decoded, sample, self._detection, self._requester, param=self._param
            )
            if isinstance(result, Window):
                return result
            sample = result
        return None

    def close(self) -> None:
        """Remove the file of the decoded recording. Windows keep their own files."""
        self._decoded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Recordings:
    """Opens and reads the recordings of all requests to this API process, in worker processes. For use in the event
    loop only. The app creates it and closes it.

    `workers` is the pool of worker processes. Decoded recordings and windows are files in a folder of this process
    below `folder`. `count` is called with the result of decoding each recording, one of RESULTS.
    """

    def __init__(
        self,
        workers: Workers,
        settings: Settings,
        folder: Path,
        count: Callable[[str], None] = lambda result: None,
    ) -> None:
        self._folder = own_folder(folder, _FOLDER)
        self._decoder = Decoder(workers, settings, count)
        self._windows = WindowReader(workers, settings, folder)
        self._serials = itertools.count()

    async def open(
        self, model: SpeechModel, file: Path, requester: Requester, *, param: str, detection: Detection = _DETECTION
    ) -> Recording:
        """Decode the recording in `file` for a model and return it, to be read window by window.

        The file is removed, also if it cannot be used. `detection` are the options for finding speech in it.
        `requester` is the request, whose API key takes its turn in the queue of worker processes. Raises InvalidField,
        which names the field `param`, if the file has no audio that can be decoded or is longer than
        GENAI_MAX_AUDIO_SECONDS; AudioReaderUnavailable if no worker process can be started or the disk is full; and
        QueueFull if too many recordings wait.
        """
        decoded = await self._decoder.decode(file, self._path("pcm"), requester, param=param)
        return Recording(self, model, decoded, requester, param, detection)

    async def read_window(
        self,
        model: SpeechModel,
        decoded: Decoded,
        start: int,
        detection: Detection,
        requester: Requester,
        *,
        param: str,
    ) -> Window | int:
        """Return the next window of a decoded recording, from the sample with index `start` on. `Recording.window`
        calls it.

        If there is no speech in the samples that were searched, the index of the first sample after them is returned
        instead. Raises InvalidField, which names the field `param`, and AudioReaderUnavailable, like
        `Recording.window`.
        """
        question = {
            "pcm": str(decoded.path),
            "peak": decoded.peak,
            "start": start,
            "detection": detection,
            "target": str(self._path("npz")),
        }
        return await self._windows.read(model, question, requester, param=param)

    def close(self) -> None:
        """Remove the folder with the files of all recordings and windows."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, ending: str) -> Path:
        """Return the path for a new file in the folder of this process. `ending` is the ending of its name, without a
        dot.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        return self._folder / f"{next(self._serials)}.{ending}"
