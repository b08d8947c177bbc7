"""A batch without a model: its logits after a token are that token's row of a table, whatever was before it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.kv_memory import UNSHARED, KvMemory
from genai_server.engine.runners.base import Opening, Row
from genai_server.engine.runners.scores import Logits, Scores
from genai_server.generation import GenerationRequest, ModelInfo


class TableRunner:
    """Does all that a batch may do: mixed passes, drafts, and the best tokens alone where they suffice."""

    name = "table"
    max_rows = 64
    nodes: Mapping[str, int | None] = {}
    lone_row_is_exact = True
    chooses = False
    mixes = True
    verifies = True
    int8_from: int | None = None
    memory: KvMemory = UNSHARED
    slots = None
    takes_past = False
    present_names: tuple[str, ...] = ()

    def __init__(self, model: ModelInfo, table: Logits) -> None:
        self.model = model
        self._table = table
        self.most_rows = 0  # of a pass up to now

    def check(self, request: GenerationRequest) -> None:
        pass

    def open(self, sequence: int, prompt: list[int], how: Opening) -> int:
        return 0

    def match_again(self, sequence: int, prompt: list[int]) -> int:
        return 0

    def forward(self, rows: Sequence[Row]) -> list[Scores]:
        self.most_rows = max(self.most_rows, len(rows))
        return [self._scores(row) for row in rows]

    def _scores(self, row: Row) -> Scores:
        read = row.tokens if row.decodes or row.positions else row.tokens[-1:]
        logits = self._table[list(read)]
        if len(read) > 1 or not row.num_choices:
            return Scores(logits)
        best = np.argsort(-logits[0], kind="stable")[: row.num_choices]
        return Scores(logits[:, best], best)

    def accept(self, sequence: int, tokens: Sequence[int]) -> None:
        pass

    def close(self, sequence: int) -> None:
        pass

    def forget(self) -> int:
        return 0

    def interrupt(self) -> None:
        pass

    def end_session(self) -> None:
        pass

    def prefill(self, sequence: int, tokens: Sequence[int], *, positions: bool = False) -> Logits:
        raise NotImplementedError

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> Logits:
        raise NotImplementedError

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        raise NotImplementedError

    def adopt(
        self, sequence: int, read: list[int], num_prefilled: int, past: dict[str, NDArray[Any]], **how: Any
    ) -> None:
        raise NotImplementedError
