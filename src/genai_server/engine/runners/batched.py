"""Continuous batching on the model builder's graph, through ONNX Runtime's IO binding.

ONNX Runtime's contrib operator com.microsoft.GroupQueryAttention can have one buffer bound as both past and present. It
writes new keys and values into that buffer, and takes each row's length from the attention mask. So one pass over a
contiguous range of slots advances sequences of different lengths by one token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from genai_server.engine.kv_memory import UNSHARED, KvMemory
from genai_server.engine.model.graph import DecoderGraph
from genai_server.engine.model.output_head import BEST_LOGITS, BEST_TOKENS, NUM_BEST
from genai_server.engine.model.session_options import node_shares
from genai_server.engine.runners import trials
from genai_server.engine.runners.base import Abilities, Interrupted, Runner
from genai_server.engine.runners.buffers import MakeBuffers
from genai_server.engine.runners.cpu_buffers import CpuBuffers
from genai_server.engine.runners.decoder_session import DecoderSession, MixedSession
from genai_server.engine.runners.kv_cache import KvSlots, Slot
from genai_server.engine.runners.scores import Logits, Scores
from genai_server.engine.sampling.next_token import num_choices
from genai_server.engine.scheduling.step import Read
from genai_server.engine.sequence import Sequence as Scheduled
from genai_server.errors import RunnerFailed
from genai_server.messages.generation_request import ModelInfo

_INTERRUPTED_MESSAGE = "terminate flag"


@dataclass(frozen=True)
class BatchLimits:
    """How much a batched runner holds."""

    # Sequences at once.
    num_slots: int
    # Tokens of each sequence.
    max_length: int
    # What the slots share.
    memory: KvMemory = UNSHARED


@dataclass(frozen=True)
class MoreSessions:
    """Further ONNX Runtime sessions of the model, for steps without exact sequences; None where there is none."""

    # Decodes and reads a chunk of a prompt in one pass.
    mixed: Any = None
    # Has 8-bit matrices in place of 4-bit ones.
    int8: Any = None
    # Does both.
    mixed_int8: Any = None
    # How many times faster a chunk must be with 8-bit matrices.
    min_gain: float = 1.2


NO_MORE = MoreSessions()


class BatchedRunner(Runner):
    """Sessions of one model, and KV cache slots in memory where these sessions run.

    Some kernels process the rows of a pass in groups, such as pairs. The rows left over at the end are not bitwise
    equal to rows in a whole group. With many threads, rows of one length are not bitwise equal to rows of several.
    Trials at start find the group size, and whether lengths matter. A pass with an exact sequence has whole groups of
    rows, of several lengths where these matter, and the model's own weights. It either decodes or reads a chunk.
    """

    slots: KvSlots

    def __init__(
        self,
        graph: DecoderGraph,
        session: Any,
        model: ModelInfo,
        limits: BatchLimits,
        *,
        more: MoreSessions = NO_MORE,
        run_entries: Mapping[str, str] = MappingProxyType({}),
        make_buffers: MakeBuffers = CpuBuffers,
    ) -> None:
        self._graph = graph
        self._make_buffers = make_buffers
        self._run_entries = dict(run_entries)  # run options of every pass
        # Of passes that are never interrupted. Without entries they have none: with options, ONNX Runtime's Python part
        # raises and catches an error in each pass.
        self._run_options = self._new_run_options() if run_entries else None
        self._own = DecoderSession(graph, session)
        self._int8 = None if more.int8 is None else DecoderSession(graph, more.int8)
        self._mixed = None if more.mixed is None else MixedSession(graph, more.mixed)
        self._mixed_int8 = None if more.mixed_int8 is None else MixedSession(graph, more.mixed_int8)
        self.model = model
        self._limits = limits
        # Run options of the prompt pass in progress. A decode step is too short to be worth interrupting.
        self._reading: Any = None
        self._may_interrupt = True
        int8_from: int | None = None
        self._take_memory(trials.ROWS, trials.TOKENS + 1)
        row_group = trials.smallest_row_group(self._try, self.buffers, model.vocab_size)
        if self._int8 is not None:
            self._take_memory(1, trials.MAX_TIMED)
            int8_from = trials.min_int8_tokens(
                self._try, partial(self._try, on=self._int8), model.vocab_size, more.min_gain
            )
        # Whether exact rows of one length need a padding row of another.
        self._splits_even_rows = limits.num_slots > 1 and self._try_long_rows(row_group, limits.max_length)
        # Rounded up to whole groups: exact rows may need padding rows. Rows beyond the slots keep nothing.
        num_rows = limits.num_slots + -limits.num_slots % row_group + row_group * self._splits_even_rows
        self._take_memory(num_rows, limits.max_length)
        self.slots = KvSlots(limits.num_slots, self.buffers, row_group=row_group, memory=limits.memory)
        self.present_names = graph.present_names
        self.abilities = Abilities(
            "batched",
            limits.num_slots,
            mixes=self._mixed is not None,
            # A device would have to copy all logits of each token of a draft.
            drafts=not graph.gives_last_logits_only and not self._own.offers_best,
            exact=row_group == 1 and not self._splits_even_rows,
            caches_prefixes=True,
            # A Generator keeps only the last keys and values of windowed layers.
            adopts=not graph.window,
            int8_from=int8_from,
            memory=limits.memory,
        )

    @property
    def nodes(self) -> Mapping[str, int | None]:
        return node_shares(self._own.session)

    def open(self, sequence: Scheduled) -> int:
        request = sequence.request
        # Decoded tokens of an exact sequence must not match another's prompt: decode and prefill are not bitwise equal.
        past = request.prompt if request.exact else sequence.tokens
        return self.slots.acquire(
            sequence.id, past, reuse=sequence.reuses_past, prefilled_only=request.exact, salt=request.cache_salt
        )

    def match_again(self, sequence: Scheduled) -> int:
        return self.slots.match_again(sequence.id, sequence.request.prompt, prefilled_only=sequence.request.exact)

    @property
    def has_int8(self) -> bool:
        """Whether there are weights of 8 bits, used or not."""
        return self._int8 is not None

    def forward(self, reads: Sequence[Read]) -> list[Scores]:
        decoding, reading = [read for read in reads if read.decodes], [read for read in reads if not read.decodes]
        if not reading:
            return [self._verify(decoding[0])] if decoding[0].draft else self._advance(decoding)
        (read,) = reading
        end = len(self._slot(read).tokens) + read.num_tokens
        if decoding and end < self._limits.max_length:  # a padding row behind it must have a position
            return self._advance_and_read(decoding, read)
        scores = self._read(read)
        return [*(self._advance(decoding) if decoding else ()), scores]

    def _read(self, read: Read) -> Scores:
        """Read a chunk of a prompt."""
        num_tokens = read.num_tokens
        if read.positions and self._graph.gives_last_logits_only and num_tokens > 1:
            raise RunnerFailed(f"the model's graph gives logits for 1 of {num_tokens} tokens of a prompt")
        on = self._session_for(num_tokens, [read])
        logits = self._run_behind(read, all_positions=read.positions, on=on)
        # Only multi-token chunks with the model's own weights count as prefilled. A single token runs the decode
        # kernel; neither that kernel nor other weights are bitwise equal.
        self.slots.append(read.sequence.id, list(read.tokens), prefilled=num_tokens > 1 and on is self._own)
        return Scores(logits if read.positions else logits[-1:])

    def _verify(self, read: Read) -> Scores:
        """Read the newest token of a sequence and a draft. The weights are the model's own, as when decoding."""
        logits = self._run_behind(read, all_positions=True, on=self._own)
        self.slots.append(read.sequence.id, [read.tokens[0]], prefilled=False)
        return Scores(logits)

    def _run_behind(self, read: Read, *, all_positions: bool, on: DecoderSession) -> Logits:
        """Run the tokens behind those of their slot; returns the logits [positions, vocab_size]."""
        slot = self._slot(read)
        lengths = np.array([len(slot.tokens) + read.num_tokens])
        self.slots.reserve(read.sequence.id, read.num_tokens)
        logits = self._run(np.array([read.tokens], np.int64), slot.index, lengths, all_positions=all_positions, on=on)
        found: Logits = logits[0]
        return found

    def accept(self, sequence: int, tokens: Sequence[int]) -> None:
        self.slots.append(sequence, list(tokens), prefilled=False)

    def _advance(self, reads: Sequence[Read]) -> list[Scores]:
        """One more token of each sequence. A device returns only the best logits if every one chooses among those."""
        choices = (num_choices(read.sequence) for read in reads)
        if self._own.offers_best and all(0 < number <= NUM_BEST for number in choices):
            return self._advance_to_best(reads)
        ids, lengths, indices = self._next_rows(reads)
        on = self._session_for(len(ids), reads)
        logits = self._step_logits[: len(ids)]  # overwritten by the next step
        self._execute(on.session, on.bind_step(ids, lengths, logits), may_interrupt=False)
        self._append(reads)
        given = logits.astype(np.float32, copy=False)
        return [Scores(given[index]) for index in indices]

    def _advance_to_best(self, reads: Sequence[Read]) -> list[Scores]:
        ids, lengths, indices = self._next_rows(reads)
        shape = (len(ids), 1, NUM_BEST)
        logits, best = np.empty(shape, np.float32), np.empty(shape, np.int64)
        self._pass(self._own, ids, 0, lengths, 1, {BEST_LOGITS: logits, BEST_TOKENS: best})
        self._append(reads)
        return [Scores(logits[index], best[index, 0]) for index in indices]

    def _advance_and_read(self, reads: Sequence[Read], chunk: Read) -> list[Scores]:
        """One more token of each sequence, and a chunk of another's prompt, in one pass."""
        assert self._mixed is not None
        ids, lengths, indices = self._next_rows(reads)
        slot = self._slot(chunk)  # read after `_next_rows`, which may move slots
        num_tokens, before = chunk.num_tokens, len(slot.tokens)
        has_int8 = self._has_int8(len(ids) + num_tokens)
        mixed = (self._mixed_int8 if has_int8 else None) or self._mixed
        logits = np.empty((1, len(indices) + 1, self.model.vocab_size), self._graph.logits_type)
        self.slots.reserve(chunk.sequence.id, num_tokens)
        if slot.index < len(ids):
            lengths[slot.index] += num_tokens  # the padding row writes behind the chunk
        binding = mixed.bind(ids, lengths, slot.index, chunk.tokens, before, indices, logits)
        self._execute(mixed.session, binding, may_interrupt=False)
        self._append(reads)
        self.slots.append(chunk.sequence.id, list(chunk.tokens), prefilled=False)
        return [Scores(row[np.newaxis]) for row in logits[0].astype(np.float32, copy=False)]

    def _slot(self, read: Read) -> Slot:
        return self.slots.slots[self.slots.index(read.sequence.id)]

    def _has_int8(self, num_tokens: int) -> bool:
        """Whether a pass of so many tokens is faster with 8-bit weights."""
        int8_from = self.abilities.int8_from
        return int8_from is not None and num_tokens >= int8_from

    def _session_for(self, num_tokens: int, reads: Sequence[Read]) -> DecoderSession:
        """The session for a step of `num_tokens`. Exact sequences always use the model's own weights."""
        if self._int8 is None or not self._has_int8(num_tokens) or _has_exact(reads):
            return self._own
        return self._int8

    def _next_rows(self, reads: Sequence[Read]) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
        """What a pass binds to read one more token of each sequence.

        Returns the input ids [rows, 1], the rows' lengths after the pass [rows], and the sequences' row indices.
        """
        for read in reads:
            self.slots.start_decoding(read.sequence.id)
        self.slots.close_holes()
        lengths = self._lengths(exact=_has_exact(reads))
        ids = np.zeros((len(lengths), 1), np.int64)
        indices = [self.slots.index(read.sequence.id) for read in reads]
        ids[indices, 0] = [read.tokens[0] for read in reads]
        return ids, lengths, indices

    def _lengths(self, *, exact: bool) -> NDArray[np.int64]:
        """The lengths of the pass's rows after it [rows]. Exact rows have padding rows behind them.

        Rows without a request write a token past their cached length; it is never read. In a slot of the greatest
        length they write over the last token, which no prompt reuses: it has at least two tokens more.
        """
        num_rows, group = self.slots.num_rows, self.slots.row_group
        rows = num_rows + (-num_rows % group if exact else 0)
        most = self._limits.max_length
        after = [min(len(slot.tokens) + 1, most) for slot in self.slots.slots[: rows + group]]
        lengths = np.array(after + [1] * (rows + group - len(after)))
        if not exact or not self._splits_even_rows or any(lengths[:rows] != lengths[0]):
            return lengths[:rows]
        rows += group if rows == num_rows else 0
        if lengths[rows - 1] == lengths[0]:
            lengths[rows - 1] += 1
            self.slots.reserve_behind(rows - 1, 2)
        return lengths[:rows]

    def _append(self, reads: Sequence[Read]) -> None:
        for read in reads:
            self.slots.append(read.sequence.id, [read.tokens[0]], prefilled=False)

    def forget(self) -> int:
        return self.slots.forget()

    def adopt(self, sequence: Scheduled, past: Mapping[str, NDArray[Any]]) -> None:
        read, prompt = sequence.tokens[: sequence.num_read], sequence.request.prompt
        self.slots.acquire(sequence.id, read, reuse=False, salt=sequence.request.cache_salt)
        self.slots.reserve(sequence.id, len(read))
        index = self.slots.index(sequence.id)
        for name, values in past.items():
            self.buffers.write(index, name, values[:, :, : len(read)])
        num_prefilled = min(len(read), len(prompt)) if len(prompt) > 1 else 0
        self.slots.append(sequence.id, read[:num_prefilled], prefilled=True)
        self.slots.append(sequence.id, read[num_prefilled:], prefilled=False)

    def interrupt(self) -> None:
        reading = self._reading
        if reading is not None:
            reading.terminate = True

    def end_session(self) -> None:
        self._own.session.end_profiling()

    def close(self, sequence: int) -> None:
        if self.slots.has(sequence):
            self.slots.release(sequence)

    def _take_memory(self, num_rows: int, max_length: int) -> None:
        """Replace the buffers by empty ones of `num_rows` rows with `max_length` tokens each. Raises RunnerFailed."""
        for each in (self._own, self._int8, self._mixed, self._mixed_int8):
            if each is not None:
                each.release()
        vars(self).pop("buffers", None)  # freed before the next are allocated
        try:
            self.buffers = self._make_buffers(self._graph, num_rows, max_length)
        except (RuntimeError, OSError, MemoryError) as error:
            raise RunnerFailed(f"no memory for keys and values: {error}") from error
        # Written by each decode step.
        self._step_logits = np.empty((num_rows, 1, self.model.vocab_size), self._graph.logits_type)
        for session in (self._own, self._int8):
            if session is not None:
                session.use(self.buffers, num_rows, max_length)
        for mixed in (self._mixed, self._mixed_int8):
            if mixed is not None:
                mixed.use(self.buffers)

    def _try_long_rows(self, row_group: int, max_length: int) -> bool:
        """Whether long rows of one length are not bitwise equal to rows of several lengths.

        Only attention on CPUs splits rows. A device would allocate all memory of the trial's long rows.
        """
        if not isinstance(self.buffers, CpuBuffers):
            return False
        context = max(1, min(max_length, trials.MAX_CONTEXT) - 1)
        self._take_memory(max(2, row_group), context + 1)
        return trials.splits_even_rows(self._try, self.buffers, self._graph, row_group, context)

    def _try(self, ids: NDArray[np.int64], lengths: NDArray[np.int64], *, on: DecoderSession | None = None) -> Logits:
        """Run `ids` [rows, new] over the first slots; returns the logits of all positions."""
        return self._run(ids, 0, lengths, all_positions=True, on=on)

    def _run(
        self,
        ids: NDArray[np.int64],
        first: int,
        lengths: NDArray[np.int64],
        *,
        all_positions: bool = False,
        on: DecoderSession | None = None,
    ) -> Logits:
        """Run `ids` [rows, new] over the slots from `first` on; `lengths` [rows] are their lengths after the pass.

        Returns the logits [rows, positions, vocab_size] of all positions, or of the last ones.
        """
        rows, new = ids.shape
        on = on or self._own
        told = self._positions(on, new, every=all_positions)
        logits = np.empty((rows, told, self.model.vocab_size), self._graph.logits_type)
        self._pass(on, ids, first, lengths, told, {self._graph.logits: logits})
        return logits.astype(np.float32, copy=False)

    def _pass(
        self,
        on: DecoderSession,
        ids: NDArray[np.int64],
        first: int,
        lengths: NDArray[np.int64],
        told: int,
        wanted: Mapping[str, NDArray[Any]],
    ) -> None:
        """Run a pass whose output head computes `told` positions; it writes the wanted outputs."""
        binding = on.bind(ids, first, lengths, told, wanted)
        try:
            self._execute(on.session, binding, may_interrupt=ids.shape[1] > 1)
        finally:
            on.keep_unread(binding, wanted)

    def _execute(self, session: Any, binding: Any, *, may_interrupt: bool) -> None:
        """Run what is bound. `interrupt` can end the pass, but never two prompt passes in a row."""
        options = self._run_options
        if may_interrupt and self._may_interrupt:
            options = self._reading = self._new_run_options()
        try:
            session.run_with_iobinding(binding, options)
            self._may_interrupt |= may_interrupt
        except RuntimeError as error:
            if _INTERRUPTED_MESSAGE in str(error):
                # Frequent interrupts would otherwise keep a prompt from ever being read.
                self._may_interrupt = False
                raise Interrupted from None
            raise RunnerFailed(f"onnxruntime: {error}") from error
        finally:
            self._reading = None

    def _new_run_options(self) -> Any:
        options = onnxruntime.RunOptions()
        for name, value in self._run_entries.items():
            options.add_run_config_entry(name, value)
        return options

    def _positions(self, on: DecoderSession, new: int, *, every: bool) -> int:
        """How many positions a pass over `new` ones computes logits for: all, or the last one's group."""
        if self._graph.gives_last_logits_only:
            return 1
        if every or not on.chooses_positions:
            return new
        return new % self.slots.row_group or self.slots.row_group


def _has_exact(reads: Sequence[Read]) -> bool:
    return any(read.sequence.request.exact for read in reads)
