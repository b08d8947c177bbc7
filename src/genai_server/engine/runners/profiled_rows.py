"""Runs profiled sequences of a batch, each pass alone, with the batch's own session and memory.

For models whose passes onnxruntime-genai cannot profile: its runtime options have no effect on the decoder of a model
of several graphs.
"""

from collections.abc import Sequence
from dataclasses import replace

from genai_server.engine.abilities import Abilities
from genai_server.engine.model.pass_profile import check_pass_profiles
from genai_server.engine.runners.base import Runner, Terminated
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.scheduling.scheduler_output import Read
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence as Scheduled
from genai_server.errors import RunnerFailed

_PROFILE, _OFF = "enable_profiling", "0"
_TERMINATE = "terminate_session"


class ProfiledRows(Runner):
    """Its sequences have slots of the batch, so one that moves between both finds its tokens in the prefix cache."""

    def __init__(self, batch: BatchedRunner) -> None:
        self.model = batch.model
        self.abilities = Abilities("batched")
        self._batch = batch
        # Its slots already have the keys and values of a sequence that returns to it.
        batch.abilities = replace(batch.abilities, adopts=False, profiles=True)
        # Path prefixes for the files of sequences that have one.
        self._wanted: dict[int, str] = {}

    def open(self, sequence: Scheduled) -> int:
        return self._batch.open(sequence)

    def forward(self, reads: Sequence[Read]) -> list[Scores]:
        self._batch.profile_prefix = self._wanted.get(reads[0].sequence.id, "")
        try:
            return self._batch.forward(reads)
        finally:
            self._batch.profile_prefix = ""

    def fit_chunk(self, sequence: Scheduled, most: int) -> int:
        return self._batch.fit_chunk(sequence, most)

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        if option == _TERMINATE:
            raise Terminated("the sequence was terminated")
        if option != _PROFILE:
            raise RunnerFailed(f"this runner has no runtime option {option}")
        check_pass_profiles()
        if value == _OFF:
            self._wanted.pop(sequence, None)
        else:
            self._wanted[sequence] = value

    def close(self, sequence: int) -> None:
        self._wanted.pop(sequence, None)
        self._batch.close(sequence)
