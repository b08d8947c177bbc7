"""The sessions of a batched runner, and the memory that they share. Trials at the start find what they can do."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from genai_server.engine.decoder_graph import DecoderGraph
from genai_server.engine.kv_cache.buffers import MakeBuffers
from genai_server.engine.kv_cache.row_states import RowStates
from genai_server.engine.model.session import open_recurrences
from genai_server.engine.model.vision import TokenEmbedder
from genai_server.engine.runners import trials
from genai_server.engine.runners.adapter_stack import AdapterStack
from genai_server.engine.runners.decoder_session import DecoderSession
from genai_server.engine.runners.lengths import BatchLimits
from genai_server.engine.scheduling.step_time import MAX_DRAFTED
from genai_server.errors import RunnerFailed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Int8Session:
    """A session with matrices of 8 bits in place of 4-bit ones, for passes of many tokens without exact sequences."""

    session: Any
    # How many times faster a chunk must be with it.
    min_gain: float = 1.2


class BatchSessions:
    """The session with a model's own weights, and the one with those of 8 bits, over the same rows.

    Raises RunnerFailed without memory for the rows, or if the first pass fails.
    """

    def __init__(
        self,
        graph: DecoderGraph,
        session: Any,
        limits: BatchLimits,
        vocab_size: int,
        *,
        int8: Int8Session | None,
        run_entries: Mapping[str, str],
        make_buffers: MakeBuffers,
    ) -> None:
        self._graph, self._vocab_size = graph, vocab_size
        self._make_buffers = make_buffers
        self._recurrences = open_recurrences(graph, session)  # for drafts
        self.stack = AdapterStack(graph.low_rank_paths) if graph.low_rank_paths else None
        embedder = None if graph.vision is None else TokenEmbedder(graph.vision)
        opened = partial(DecoderSession, graph, adapters=self.stack, embedder=embedder, run_entries=run_entries)
        self.own = opened(session)
        self.int8 = None if int8 is None else opened(int8.session)
        self._take_memory(trials.ROWS, trials.TOKENS + 1)
        self.own.read_prompt()
        run, copy = self.own.try_rows, self.own.copy_row
        is_known = graph.block_tokens or (graph.is_native and graph.has_packed_products_only)
        self.row_group = 1 if is_known else trials.smallest_row_group(run, copy, vocab_size)
        self.trial = trials.Int8Trial() if int8 is None else self._try_int8(int8.min_gain)
        self._take_memory(limits.num_slots, limits.max_length)

    def _take_memory(self, num_rows: int, max_length: int) -> None:
        """Replace the buffers by empty ones of `num_rows` rows with `max_length` tokens each. Raises RunnerFailed."""
        sessions = [session for session in (self.own, self.int8) if session is not None]
        for session in sessions:
            session.release()
        for name in ("buffers", "states"):
            vars(self).pop(name, None)  # freed before the next are allocated
        try:
            self.buffers = self._make_buffers(self._graph, num_rows, max_length)
            self.states = RowStates(self._graph, num_rows, self._recurrences)
        except (RuntimeError, OSError, MemoryError) as error:
            raise RunnerFailed(f"no memory for keys and values: {error}") from error
        logits = np.empty((max(num_rows, MAX_DRAFTED), self._vocab_size), self._graph.logits_type)
        for session in sessions:
            session.use(self.buffers, self.states, logits)

    def _try_int8(self, min_gain: float) -> trials.Int8Trial:
        """Time passes with 8-bit weights, which are not used if they are slower, too coarse, or fail."""
        assert self.int8 is not None
        self._take_memory(1, trials.MAX_TIMED)
        try:
            self.int8.read_prompt()
            return trials.try_int8(self.own.try_rows, self.int8.try_rows, self._vocab_size, min_gain)
        except RunnerFailed as error:
            log.warning("weights of 8 bits are not used: %s", error.message)
            return trials.Int8Trial()
