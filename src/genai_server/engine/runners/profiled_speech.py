"""Runs sequences of a model for speech that are profiled.

onnxruntime-genai's runtime options have no effect on the decoder of a model of several graphs. But a configuration may
have options of every pass of the decoder, and one of them profiles it. So a second model is loaded with that option
when the first sequence is profiled, and stays loaded.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from genai_server.engine.runners.base import Abilities, Runner
from genai_server.engine.runners.og_generator import OgGeneratorRunner
from genai_server.engine.runners.scores import Scores
from genai_server.engine.scheduling.scheduler_output import Read
from genai_server.engine.sequence import Sequence as Scheduled
from genai_server.errors import RunnerFailed
from genai_server.messages.generation_request import ModelInfo

_PROFILE, _OFF = "enable_profiling", "0"
_NAME = "pass"


class ProfiledSpeechRunner(Runner):
    """`load` makes a runner whose passes ONNX Runtime profiles into files whose names begin with a path prefix.

    These files get the name that the sequence's runtime option gives, or are removed if it gives none. They are first
    in a folder of their own within `parent`, by default the system's folder for temporary files.
    """

    def __init__(self, model: ModelInfo, load: Callable[[str], OgGeneratorRunner], parent: Path | None = None) -> None:
        self.model = model
        self.abilities = Abilities("generator", loads_late=True)
        self._load = load
        self._parent = parent
        self._loaded: OgGeneratorRunner | None = None
        self._folder = ""
        # Path prefixes for the files of sequences that have one.
        self._wanted: dict[int, str] = {}

    def open(self, sequence: Scheduled) -> int:
        if self._loaded is None:
            self._folder = tempfile.mkdtemp(prefix="passes-", dir=self._parent)
            try:
                self._loaded = self._load(str(Path(self._folder) / _NAME))
            except Exception as error:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise RunnerFailed(f"the model cannot be loaded for profiles: {error}") from error
        return self._loaded.open(sequence)

    def forward(self, reads: Sequence[Read]) -> list[Scores]:
        scores = self._opened.forward(reads)
        wanted = self._wanted.get(reads[0].sequence.id)
        for file in sorted(Path(self._folder).iterdir()):
            if wanted is None:
                file.unlink()
            else:
                shutil.move(file, wanted + file.name.removeprefix(_NAME))
        return scores

    def fit_chunk(self, sequence: Scheduled, most: int) -> int:
        return self._opened.fit_chunk(sequence, most)

    def export(self, sequence: int, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        return self._opened.export(sequence, names)

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        if option != _PROFILE:
            self._opened.set_runtime_option(sequence, option, value)
        elif value == _OFF:
            self._wanted.pop(sequence, None)
        else:
            self._wanted[sequence] = value

    def close(self, sequence: int) -> None:
        self._wanted.pop(sequence, None)
        if self._loaded is not None:
            self._loaded.close(sequence)

    def end_session(self) -> None:
        if self._loaded is not None:
            self._loaded.end_session()
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _opened(self) -> OgGeneratorRunner:
        assert self._loaded is not None
        return self._loaded
