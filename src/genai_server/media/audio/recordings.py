"""The recordings of requests for speech models. A recording is decoded once and then read window by window."""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Self

from genai_server.config.settings import Settings
from genai_server.media.audio.decoder import Decoded, Decoder
from genai_server.media.audio.detection import Detection
from genai_server.media.audio.window_reader import Window, WindowReader
from genai_server.model_files.speech_model import SAMPLE_RATE, SpeechModel
from genai_server.system.runtime_folder import own_folder
from genai_server.workers.workers import Requester, Workers

# Name of the folder in the engines' folder.
_FOLDER = "recordings"
_DETECTION = Detection()


class Recording:
    """A decoded recording, which is read window by window. Its file exists until `close`. `Recordings.open` creates it.
    For use in the event loop only.
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
        pause if there is one near the maximum length. Raises InvalidField, which names the recording's field, and
        AudioReaderUnavailable.
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
        """Remove the decoded recording. Files of windows are not removed."""
        self._decoded.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Recordings:
    """Opens and reads the recordings of all requests of this API process. For use in the event loop only. The app
    closes it.

    Decoded recordings and windows are files in a folder of this process below `folder`. `count` is called with the
    result of decoding each recording, one of `audio.decoder.RESULTS`.
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
        """Decode a recording for a model. The file `file` is removed, also if it cannot be used. `detection` are the
        options for finding speech in the recording.

        Raises InvalidField, which names `param`, if the file has no audio that can be decoded or is longer than
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
        """Return the next window from sample `start` on. If there is no speech in the samples that were searched,
        return the index of the first sample after them.

        Raises the same errors as `Recording.window`.
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
        """Remove the folder with all files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, ending: str) -> Path:
        """Return the path for a new file in the folder."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        return self._folder / f"{next(self._serials)}.{ending}"
