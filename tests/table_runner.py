"""A batch without a model: the logits after a token are its row of a table, whatever precedes it."""

from collections import abc

import numpy as np

from genai_server.engine.abilities import Abilities
from genai_server.engine.runners.base import Runner
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scores import Best, Logits, Scores
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import ModelInfo


class TableRunner(Runner):
    """Supports every ability of a batch: mixed passes, drafts, and with `num_best` this number of best logits alone."""

    def __init__(self, model: ModelInfo, table: Logits, *, num_best: int = 0) -> None:
        self.model = model
        self.abilities = Abilities("table", 64, mixes=True, drafts=True)
        self._table = table
        self._num_best = num_best
        self.max_rows_seen = 0  # of any pass so far
        # Positions of which best logits alone were given, and those of which all were asked for.
        self.num_offered = self.num_fetched = 0

    def open(self, sequence: Sequence) -> int:
        return 0

    def forward(self, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        self.max_rows_seen = max(self.max_rows_seen, len(chunks))
        return [self._scores(chunk) for chunk in chunks]

    def _scores(self, chunk: ScheduledChunk) -> Scores:
        tokens = chunk.tokens if chunk.decodes or chunk.positions else chunk.tokens[-1:]
        logits = self._table[list(tokens)]
        if not self._num_best:
            return Scores(logits)
        self.num_offered += len(logits)
        best = np.argsort(-logits, kind="stable")[:, : self._num_best]
        scales = np.full(len(logits), chunk.sequence.sampler.scale, np.float32)
        shares = 1 / np.exp(scales[:, np.newaxis] * (logits - logits.max(axis=1, keepdims=True))).sum(axis=1)

        def fetch(places: range) -> Logits:
            self.num_fetched += len(places)
            return logits[places.start : places.stop]

        highest = np.take_along_axis(logits, best, axis=1)
        return Scores(best=Best(highest, best, shares, scales, range(len(tokens)), fetch))

    def accept(self, sequence: int, tokens: abc.Sequence[int]) -> None:
        pass

    def close(self, sequence: int) -> None:
        pass
