"""Reads windows of decoded recordings for one speech model, in separate processes."""

import asyncio
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from genai_server.config.environment import untrusted_work_environment
from genai_server.config.settings import Settings
from genai_server.errors import AudioReaderUnavailable, InvalidField
from genai_server.process_pool import ProcessDied, ProcessPool, ProcessTimeout, WorkerProcess
from genai_server.speech_model import SAMPLE_RATE, SpeechModel


class _WindowProcess(WorkerProcess):
    module, purpose = "genai_server.audio.window_process", "reads recordings"
    unavailable = AudioReaderUnavailable


@dataclass(frozen=True, eq=False)
class Window:
    """Part of a recording, prepared for a model. Its file exists as long as the object is alive."""

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
    """Reads windows for one model, in the event loop; its pool must be closed. `folder` is for temporary files."""

    def __init__(self, model: SpeechModel, settings: Settings, folder: Path) -> None:
        self._timeout = settings.audio_timeout
        spec = {
            "model_dir": str(model.directory),
            "window_samples": round(model.window_seconds * SAMPLE_RATE),
            "max_seconds": settings.max_audio_seconds,
            "folder": str(folder),
        }
        start = partial(_WindowProcess, untrusted_work_environment(), spec)
        self.pool: ProcessPool[_WindowProcess, Mapping[str, Any]] = ProcessPool(_WindowProcess, start)

    async def read(self, question: Mapping[str, Any], *, param: str) -> Window | int:
        """The window that a question asks for, or the sample before which there is no speech.

        Raises InvalidField, which names `param`, and AudioReaderUnavailable.
        """
        target = Path(question["target"])
        is_needed = threading.Event()
        is_needed.set()
        work = partial(self._read, question, target, is_needed, param)
        try:
            answer = await self.pool.call(question["target"].encode(), work, lambda answer: None)
        except BaseException:
            is_needed.clear()
            await asyncio.shield(asyncio.to_thread(target.unlink, missing_ok=True))
            raise
        if "silent_until" in answer:
            return int(answer["silent_until"])
        begin, end = (answer[name] / SAMPLE_RATE for name in ("begin", "end"))
        return Window(begin, end, target, answer["digest"], answer["is_cut"])

    def _read(
        self, question: Mapping[str, Any], target: Path, is_needed: threading.Event, param: str
    ) -> Mapping[str, Any]:
        """Read a window, in one of the threads. Raises InvalidField and AudioReaderUnavailable."""
        reason = ""
        answer: Mapping[str, Any] = {}
        try:
            answer = self.pool.with_process(lambda process: process.ask(question, b"", self._timeout))
        except ProcessTimeout:
            reason = f"takes longer than {self._timeout} s to read (GENAI_AUDIO_TIMEOUT)"
        except ProcessDied:
            reason = "crashes the process that reads recordings, or exceeds its memory limit"
        finally:
            if "digest" not in answer or not is_needed.is_set():
                target.unlink(missing_ok=True)
        if reason:
            seconds = question["start"] / SAMPLE_RATE
            raise InvalidField(f"{param}: the recording {reason}, from {seconds:.2f} s on", param=param)
        if reason := answer.get("unavailable", ""):
            raise AudioReaderUnavailable(f"a recording cannot be read: {reason}")
        return answer
