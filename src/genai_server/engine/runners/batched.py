"""Continuous batching straight on the model builder's graph, through ONNX Runtime's IO binding.

GroupQueryAttention writes new keys and values into the buffer that is bound as both its past and its present (ONNX
Runtime's contrib operator com.microsoft.GroupQueryAttention), and takes each row's length from the attention mask. So
one pass over a contiguous range of slots takes sequences of different lengths one token further.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from genai_server.engine.model.graph import DecoderGraph
from genai_server.engine.model.output_head import BEST_LOGITS, BEST_TOKENS, FIRST_POSITION, NUM_BEST
from genai_server.engine.model.session_options import node_shares
from genai_server.engine.runners.base import Interrupted, Opening, Row
from genai_server.engine.runners.buffers import MakeBuffers
from genai_server.engine.runners.cpu_buffers import CpuBuffers
from genai_server.engine.runners.kv_cache import KvSlots
from genai_server.engine.runners.scores import Logits, Scores
from genai_server.errors import RunnerFailed
from genai_server.generation import GenerationRequest, ModelInfo

_INTERRUPTED_MESSAGE = "terminate flag"
# Prompt and rows of the trial at the start.
_TRIED_TOKENS = 8
_TRIED_ROWS = 8


@dataclass(frozen=True)
class BatchLimits:
    """Sequences at once, and tokens of each."""

    num_slots: int
    max_length: int


class BatchedRunner:
    """One ONNX Runtime session, and slots in one set of key-value buffers, which lie where the session runs.

    `run_entries` are options of every pass.

    Some kernels take the rows of a pass in groups, such as pairs, and round those otherwise that are left at its end.
    How large the groups are is tried at the start; a pass with an exact sequence has whole groups of rows.
    """

    name = "batched"
    chooses = False

    def __init__(
        self,
        graph: DecoderGraph,
        session: Any,
        model: ModelInfo,
        limits: BatchLimits,
        *,
        run_entries: Mapping[str, str] = MappingProxyType({}),
        make_buffers: MakeBuffers = CpuBuffers,
    ) -> None:
        self._graph = graph
        self._make_buffers = make_buffers
        self._run_entries = dict(run_entries)
        self._session = session
        self._model = model
        self._exact: set[int] = set()
        self._max_rows = limits.num_slots
        self._chooses_positions = FIRST_POSITION in {value.name for value in session.get_inputs()}
        self._offers_best = BEST_LOGITS in {value.name for value in session.get_outputs()}
        # The options of the pass that reads a prompt now; a decode step is too short to be worth interrupting.
        self._reading: Any = None
        self._may_interrupt = True
        self._take_memory(_TRIED_ROWS, _TRIED_TOKENS + 1)
        row_group = self._try_row_groups()
        # Whole groups, for exact rows may need companions; beyond the slots these keep nothing.
        self._take_memory(limits.num_slots + -limits.num_slots % row_group, limits.max_length)
        self.slots = KvSlots(limits.num_slots, self._buffers, row_group=row_group)

    @property
    def lone_row_is_exact(self) -> bool:
        """Whether a row gives bit for bit the same alone and in any batch."""
        return self.slots.row_group == 1

    @property
    def nodes(self) -> dict[str, int | None]:
        """How many nodes of the graph each provider runs."""
        return dict(node_shares(self._session))

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def max_rows(self) -> int:
        return self._max_rows

    def open(self, sequence: int, prompt: list[int], how: Opening) -> int:
        if how.exact:
            self._exact.add(sequence)
        return self.slots.acquire(sequence, prompt, reuse=how.reuse, exact=how.exact, salt=how.salt)

    def check(self, request: GenerationRequest) -> None:
        """There is nothing that a request cannot have here."""

    def forget(self) -> int:
        return self.slots.forget()

    def forward(self, rows: Sequence[Row]) -> list[Scores]:
        if all(row.decodes for row in rows):
            ids, tokens = [row.sequence for row in rows], [row.tokens[0] for row in rows]
            return self.advance(ids, tokens, (row.num_choices for row in rows))
        (row,) = rows
        logits = self.prefill(row.sequence, row.tokens, positions=row.positions)
        return [Scores(np.atleast_2d(logits))]

    def prefill(self, sequence: int, tokens: Sequence[int], *, positions: bool = False) -> Logits:
        if positions and self._graph.gives_last_logits_only and len(tokens) > 1:
            raise RunnerFailed(f"the model's graph gives logits for 1 of {len(tokens)} tokens of a prompt")
        index = self.slots.index(sequence)
        length = len(self.slots.slots[index].tokens) + len(tokens)
        logits = self._run(np.array([tokens], np.int64), index, np.array([length]), all_positions=positions)
        # One token alone is read by the kernel that decodes, which rounds otherwise.
        self.slots.append(sequence, list(tokens), prefilled=len(tokens) > 1)
        wanted: Logits = logits[0] if positions else logits[0, -1]
        return wanted

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> Logits:
        ids, lengths, indices = self._next_rows(sequences, tokens)
        logits = self._run(ids, 0, lengths)
        self._append(sequences, tokens)
        return logits[indices, -1]

    def advance(self, sequences: Sequence[int], tokens: Sequence[int], num_choices: Iterable[int]) -> list[Scores]:
        """As `decode`; where the logits are on a device, the best alone leave it if nobody needs others."""
        if not (self._offers_best and all(0 < number <= NUM_BEST for number in num_choices)):
            return [Scores(row[np.newaxis]) for row in self.decode(sequences, tokens)]
        ids, lengths, indices = self._next_rows(sequences, tokens)
        shape = (len(ids), 1, NUM_BEST)
        logits, best = np.empty(shape, np.float32), np.empty(shape, np.int64)
        self._pass(ids, 0, lengths, 1, {BEST_LOGITS: logits, BEST_TOKENS: best})
        self._append(sequences, tokens)
        return [Scores(logits[index], best[index, 0]) for index in indices]

    def _next_rows(
        self, sequences: Sequence[int], tokens: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
        """The input [rows, 1] of a pass that reads one more token of each sequence, the lengths of its rows after it,
        and which of them are the sequences'.
        """
        for sequence in sequences:
            if self.slots.index(sequence) >= self.slots.num_decoding:
                self.slots.start_decoding(sequence)
        rows = self.slots.num_decoding
        if not self._exact.isdisjoint(sequences):
            rows += -rows % self.slots.row_group  # with companions, which nobody listens to
        ids = np.zeros((rows, 1), np.int64)
        indices = [self.slots.index(sequence) for sequence in sequences]
        ids[indices, 0] = tokens
        # A row that is not asked for writes one token behind its past, where nothing counts.
        lengths = np.ones(rows, np.int64)
        for index, slot in enumerate(self.slots.slots[:rows]):
            lengths[index] += len(slot.tokens)
        return ids, lengths, indices

    def _append(self, sequences: Sequence[int], tokens: Sequence[int]) -> None:
        for sequence, token in zip(sequences, tokens, strict=True):
            self.slots.append(sequence, [token], prefilled=False)

    @property
    def present_names(self) -> tuple[str, ...]:
        """The graph's outputs that hold keys and values."""
        return self._graph.present_names

    @property
    def takes_past(self) -> bool:
        """Whether a Generator's keys and values can be taken over: of windowed layers it keeps only the last ones."""
        return not self._graph.window

    def adopt(
        self,
        sequence: int,
        read: list[int],
        num_prefilled: int,
        past: dict[str, NDArray[Any]],
        *,
        exact: bool = False,
        salt: str | None = None,
    ) -> None:
        """Take over a sequence with the keys and values [1, kv_heads, …, head_size] of the tokens it has read."""
        if exact:
            self._exact.add(sequence)
        self.slots.acquire(sequence, read, reuse=False, salt=salt)
        index = self.slots.index(sequence)
        for name, values in past.items():
            self._buffers.write(index, name, values[:, :, : len(read)])
        self.slots.append(sequence, read[:num_prefilled], prefilled=True)
        self.slots.append(sequence, read[num_prefilled:], prefilled=False)

    def interrupt(self) -> None:
        reading = self._reading
        if reading is not None:
            reading.terminate = True

    def end_session(self) -> None:
        self._session.end_profiling()

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        raise RunnerFailed(f"the batched runner has no runtime option {option}")

    def close(self, sequence: int) -> None:
        self._exact.discard(sequence)
        if self.slots.has(sequence):
            self.slots.release(sequence)

    def _take_memory(self, num_rows: int, max_length: int) -> None:
        """Have so many rows of so many tokens, and nothing in them."""
        self._buffers = self._make_buffers(self._graph, num_rows, max_length)
        self._bindings: dict[tuple[int, int], Any] = {}
        # One for all passes: every binding would keep its own last mask.
        self._mask = np.empty(num_rows * self._graph.slot_length(max_length), np.int64)

    def _try_row_groups(self) -> int:
        """The smallest groups of rows that give the same logits whatever other groups are in a pass."""
        run = partial(self._run, all_positions=True)
        prompt = np.arange(_TRIED_TOKENS, dtype=np.int64)[np.newaxis] % self._model.vocab_size
        run(prompt, 0, np.array([_TRIED_TOKENS]))
        for row in range(1, _TRIED_ROWS):
            self._buffers.copy(0, row, _TRIED_TOKENS)
        following = np.arange(_TRIED_ROWS, dtype=np.int64)[:, np.newaxis] % self._model.vocab_size
        lengths = np.full(_TRIED_ROWS, _TRIED_TOKENS + 1)
        together = run(following, 0, lengths)

        def is_whole(group: int) -> bool:
            passes = [rows for rows in (group, 3 * group) if rows < _TRIED_ROWS]
            return all(np.array_equal(run(following[:rows], 0, lengths[:rows]), together[:rows]) for rows in passes)

        return next(group for group in (1, 2, 4, _TRIED_ROWS) if is_whole(group))

    def _run(
        self, ids: NDArray[np.int64], first: int, lengths: NDArray[np.int64], *, all_positions: bool = False
    ) -> Logits:
        """One pass of `ids` [rows, new] over the slots from `first` on, whose rows are `lengths` long after it.

        Returns the logits [rows, positions, vocab_size] after all positions, or after the last ones.
        """
        rows, new = ids.shape
        told = self._positions(new, every=all_positions)
        logits = np.empty((rows, told, self._model.vocab_size), self._graph.logits_type)
        self._pass(ids, first, lengths, told, {self._graph.logits: logits})
        return logits.astype(np.float32, copy=False)

    def _pass(
        self,
        ids: NDArray[np.int64],
        first: int,
        lengths: NDArray[np.int64],
        told: int,
        wanted: Mapping[str, NDArray[Any]],
    ) -> None:
        """Run a pass whose head tells so many positions, and have it write the wanted outputs."""
        rows, new = ids.shape
        binding = self._binding(first, rows)
        width = int(lengths.max())
        mask = self._mask[: rows * width].reshape(rows, width)
        np.less(np.arange(width), lengths[:, None], out=mask)
        binding.bind_cpu_input(self._graph.input_ids, ids)
        binding.bind_cpu_input(self._graph.attention_mask, mask)
        if self._graph.position_ids is not None:
            binding.bind_cpu_input(self._graph.position_ids, lengths[:, None] - new + np.arange(new))
        if self._chooses_positions:
            binding.bind_cpu_input(FIRST_POSITION, np.array([-told]))
        # All of them each time, for a binding that is left as it was would be written to.
        unread = {self._graph.logits, *((BEST_LOGITS, BEST_TOKENS) if self._offers_best else ())} - wanted.keys()
        for name, array in wanted.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name in unread:
            self._buffers.keep(binding, name)
        options = onnxruntime.RunOptions()
        for name, value in self._run_entries.items():
            options.add_run_config_entry(name, value)
        self._reading = options if new > 1 and self._may_interrupt else None
        try:
            self._session.run_with_iobinding(binding, options)
            self._may_interrupt |= new > 1
        except RuntimeError as error:
            if _INTERRUPTED_MESSAGE in str(error):
                # No two chunks in a row: else a prompt would never be read beside somebody who asks often.
                self._may_interrupt = False
                raise Interrupted from None
            raise RunnerFailed(f"onnxruntime: {error}") from error
        finally:
            self._reading = None
            for name in unread:
                self._buffers.keep(binding, name)  # anew, for a binding keeps what it was given as long as it lives

    def _positions(self, new: int, *, every: bool) -> int:
        """Of how many positions a pass over `new` ones tells the logits: all, or the last with its group."""
        if self._graph.gives_last_logits_only:
            return 1
        if every or not self._chooses_positions:
            return new
        return new % self.slots.row_group or self.slots.row_group

    def _binding(self, first: int, rows: int) -> Any:
        """The binding of a range of slots: binding two names for each layer anew would cost 0.7 ms a pass."""
        if (first, rows) not in self._bindings:
            binding = self._session.io_binding()
            self._buffers.bind(binding, first, rows)
            self._bindings[first, rows] = binding
        return self._bindings[first, rows]
