"""Requests windows of decoded recordings from worker processes."""

import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genai_server.config.settings import Settings
from genai_server.errors import AudioReaderUnavailable, InvalidField
from genai_server.messages.worker_tasks import Task
from genai_server.model_files.speech_model import SAMPLE_RATE, SpeechModel
from genai_server.workers.pool import remove
from genai_server.workers.process import ProcessDied, ProcessTimeout
from genai_server.workers.task_kinds import READ_WINDOW
from genai_server.workers.workers import Requester, Workers


@dataclass(frozen=True, eq=False)
class Window:
    """A part of a recording, prepared for a model. Its file is removed when the object is garbage-collected."""

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
    """Reads windows of recordings for all models. For use in the event loop only.

    `folder` is for temporary files of the worker processes.
    """

    def __init__(self, workers: Workers, settings: Settings, folder: Path) -> None:
        self._workers = workers
        self._settings = settings
        self._folder = folder

    async def read(
        self, model: SpeechModel, question: dict[str, Any], requester: Requester, *, param: str
    ) -> Window | int:
        """Return the next window with speech, which a worker process prepares. If a long stretch has no speech, return
        the index of the sample at which the stretch ends.

        `question` is what the worker process receives (see window_process.py). Raises InvalidField, which names
        `param`, and AudioReaderUnavailable.
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
            begin, end = (result[name] / SAMPLE_RATE for name in ("begin", "end"))
            window = Window(begin, end, target, result["digest"], result["is_cut"])
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
