"""Main program of a worker process that finds speech in decoded recordings and computes the spectrograms of windows
(parts of a recording that fit the model's input) for one speech model.

The process's argument is a specification in JSON: the model's folder, the length of a window and further limits.
Questions and answers are JSON objects. A question names a file of PCM samples, the sample to start at and the file to
write. The answer is the begin, end and digest of the window and whether it ends within speech, or the sample at which
silence ends. The process reads no environment variables and holds no secrets.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from genai_server.media.audio.detection import Detection
from genai_server.media.audio.features import SpeechFeatures
from genai_server.media.audio.voice_activity import Detector, Samples, Silence, find_speech
from genai_server.model_files.speech_and_vision import FEATURES, SAMPLE_RATE
from genai_server.workers.worker_loop import Answer, answer_questions

# Maximum bytes in addition to the process's memory at its start. The file of a recording is mapped, too.
_MEMORY = 1024 * 1024 * 1024
_MEMORY_PER_SECOND = 2 * SAMPLE_RATE
# A question ends after so much silence, so that none takes long.
_MAX_SILENCE = 120 * SAMPLE_RATE


def main() -> None:
    """Main program of the worker process: prepare windows of recordings, as the parent process asks, until the parent
    exits.
    """
    spec = json.loads(sys.argv[1])

    def prepare() -> Answer:
        reader = WindowReader(Path(spec["model_dir"]), spec["window_samples"], Path(spec["folder"]))
        return lambda question, data: _answer(reader, question)

    answer_questions(prepare, _MEMORY + _MEMORY_PER_SECOND * spec["max_seconds"])


def _answer(reader: "WindowReader", question: dict[str, Any]) -> dict[str, Any]:
    try:
        return reader.answer(question)
    except OSError as error:
        return {"unavailable": error.strerror or type(error).__name__}


class WindowReader:
    """Finds windows with speech in recordings and computes their spectrograms, for the speech model in the folder
    `model_dir`.

    `window_samples` is the maximum number of samples of a window. `folder` is for temporary files.
    """

    def __init__(self, model_dir: Path, window_samples: int, folder: Path) -> None:
        self._model_dir = str(model_dir)
        self._window_samples = window_samples
        self._detector = Detector()
        with tempfile.TemporaryDirectory(dir=folder) as stub:
            self._features = SpeechFeatures(model_dir, Path(stub))
        # One-time work is done before the first window is timed.
        silence = np.zeros(window_samples, np.int16)
        self._detector.start(0).probabilities(silence)
        self._features.compute(silence)

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a question of the parent process: find the next window with speech, and write its spectrogram to a
        file.

        `question` has the path `pcm` of the recording's samples, their `peak` amplitude, the index `start` of the first
        sample to search, the options `detection` and the path `target` of the file to write. Returns the window's
        `begin` and `end` in samples, its `digest` and `is_cut` (it ends within speech), or only `silent_until`, the
        sample at which silence ends. Raises OSError if a file cannot be read or written.
        """
        samples: Samples = np.memmap(question["pcm"], np.int16, "r")
        scorer = self._detector.start(question["peak"])
        result = find_speech(
            scorer, samples, question["start"], self._window_samples, _MAX_SILENCE, Detection(*question["detection"])
        )
        if isinstance(result, Silence):
            return {"silent_until": result.end}
        start, end, is_cut = result
        window = samples[start:end]
        digest = hashlib.sha256(json.dumps([self._model_dir, self._window_samples]).encode() + b"\n")
        digest.update(window.tobytes())
        np.savez(question["target"], **{FEATURES: self._features.compute(window)})  # type: ignore[arg-type]
        return {"begin": start, "end": end, "is_cut": is_cut, "digest": digest.hexdigest()}


if __name__ == "__main__":
    main()
