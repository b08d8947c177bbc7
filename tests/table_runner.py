"""A batch without a model: the logits after a token are its row of a table, whatever precedes it."""

from collections.abc import Sequence

import numpy as np

from genai_server.engine.abilities import Abilities
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.scores import Logits, Scores
from genai_server.engine.sampling.continuation import num_choices
from genai_server.engine.scheduling.scheduler_output import Read
from genai_server.engine.sequence import Sequence as Scheduled
from genai_server.messages.generation_request import ModelInfo


class TableRunner(Runner):
    """Supports every ability of a batch: mixed passes, drafts, and the best tokens alone where they suffice."""

    def __init__(self, model: ModelInfo, table: Logits) -> None:
        self.model = model
        self.abilities = Abilities("table", 64, mixes=True, drafts=True)
        self._table = table
        self.max_rows_seen = 0  # of any pass so far

    def open(self, sequence: Scheduled) -> int:
        return 0

    def forward(self, reads: Sequence[Read]) -> list[Scores]:
        self.max_rows_seen = max(self.max_rows_seen, len(reads))
        return [self._scores(read) for read in reads]

    def _scores(self, read: Read) -> Scores:
        tokens = read.tokens if read.decodes or read.positions else read.tokens[-1:]
        logits = self._table[list(tokens)]
        number = num_choices(read.sequence)
        if len(tokens) > 1 or not number:
            return Scores(logits)
        best = np.argsort(-logits[0], kind="stable")[:number]
        return Scores(logits[:, best], best)

    def accept(self, sequence: int, tokens: Sequence[int]) -> None:
        pass

    def close(self, sequence: int) -> None:
        pass
