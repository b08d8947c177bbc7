"""The runner for continuous batching: one session of ONNX Runtime, in which each pass reads tokens of several
sequences.

The decoder's graph was rewritten for this (engine/graph_rewriting/ragged.py). Each sequence has a KV cache slot, whose
memory is bound to the session, and the operators of the graph write new keys and values into it.
"""

from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.abilities import Abilities
from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.kv_cache.buffers import (
    CpuBuffers,
    MakeBuffers,
    RowStates,
    before_checkpoint,
    ends_at_checkpoint,
    is_common_end,
)
from genai_server.engine.kv_cache.kv_slots import KvSlots
from genai_server.engine.kv_cache.layout import Layout, Row, lay_out
from genai_server.engine.model.adapter_file import adapter_inputs, check_adapter_file
from genai_server.engine.model.encoders import TokenEmbedder
from genai_server.engine.model.session import check_pass_profiles, open_state_operators
from genai_server.engine.model.session_options import node_shares
from genai_server.engine.runners.adapters import AdapterStack, AdapterWeights, load_weights
from genai_server.engine.runners.base import Interrupted, Runner
from genai_server.engine.runners.decoder_session import DecoderSession
from genai_server.engine.runners.sequence_limits import BatchLimits
from genai_server.engine.sampling.continuation import needs_all_logits
from genai_server.engine.scheduling.scheduler_output import KvBudget, ScheduledChunk, is_low_priority
from genai_server.engine.scheduling.step_time import MAX_DRAFTED
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.errors import RunnerFailed
from genai_server.messages.generation_request import ModelInfo

# Tokens of a chunk all of whose logits are computed on a device. With 150,000 tokens, they take 0.16 GB of its memory.
MAX_POSITIONS = 256
# Of the first pass. Most passes read more tokens than they give logits, too.
_TRIED_TOKENS = 3
TakeHidden = Callable[[Sequence, int, NDArray[Any]], None]


def _why_not_exact(graph: DecoderGraph, *, rounds_prefixes: bool) -> str:
    """Return the reason why the result for a token may be different in different passes; "" if it is always bitwise the
    same.

    `rounds_prefixes` says whether prefixes are stored on disk with 16 bits instead of 32.
    """
    if not graph.is_native:
        return "its kernels round differently with the tokens of a pass"
    if not graph.has_packed_products_only:
        return "some of its operators round differently with the tokens of a pass"
    if rounds_prefixes:
        return "prefixes on disk are rounded to 16 bits (GENAI_PREFIX_CACHE_TYPE)"
    return ""


class BatchedRunner(Runner):
    """Runs a decoder for several sequences in each pass, with a session of ONNX Runtime and KV cache slots."""

    slots: KvSlots

    def __init__(
        self,
        graph: DecoderGraph,
        session: Any,
        model: ModelInfo,
        limits: BatchLimits,
        *,
        rounds_prefixes: bool = False,
        run_entries: Mapping[str, str] = MappingProxyType({}),
        make_buffers: MakeBuffers = CpuBuffers,
    ) -> None:
        """Allocate the KV cache and run a first pass. Raises RunnerFailed if there is no memory or the pass fails.

        `limits` has the number of slots and their memory. `rounds_prefixes` says whether prefixes are stored on disk
        with 16 bits instead of 32. `run_entries` are run options of ONNX Runtime for every pass, and `make_buffers`
        allocates the KV cache.
        """
        self.graph, self.model = graph, model
        self.switches_at = graph.switches_at
        self._has_states = graph.has_states
        # Path prefixes for the files of profiled sequences.
        self._profiles: dict[int, str] = {}
        # Of the last pass; None before the first one.
        self._layout: Layout | None = None
        self.stack = AdapterStack(graph.low_rank_paths) if graph.low_rank_paths and graph.is_native else None
        self.session = DecoderSession(
            graph,
            session,
            adapters=self.stack,
            embedder=None if graph.vision is None else TokenEmbedder(graph.vision),
            run_entries=run_entries,
        )
        try:
            self._try_pass(make_buffers)
            self.buffers = make_buffers(graph, limits.num_slots, limits.max_length)
            self.states = RowStates(graph, limits.num_slots, open_state_operators(graph, session))
        except (RuntimeError, OSError, MemoryError) as error:
            raise RunnerFailed(f"no memory for keys and values: {error}") from error
        logits = np.empty((max(limits.num_slots, MAX_DRAFTED), model.vocab_size), graph.logits_type)
        self.session.use(self.buffers, self.states, logits)
        # Takes the states of a chunk's tokens for a head for multi-token prediction, after a pass and before its drafts
        # are verified: a sequence, its length before these tokens, and the states [tokens, hidden_size]. None without;
        # only for graphs with a `hidden_size`.
        self.take_hidden: TakeHidden | None = None
        self.slots = KvSlots(
            limits.num_slots,
            self.buffers,
            min_copied=graph.block_tokens or 1,
            memory=limits.memory,
            states=self.states if self._has_states else None,
        )
        self.abilities = Abilities(
            "batched",
            limits.num_slots,
            mixes=True,
            drafts=True,
            adapters=self.stack is not None,
            caches_prefixes=True,
            # The states of many rows would have to be copied before each pass.
            interrupts=not self._has_states,
            uses_host_cores=graph.is_native,
            why_not_exact=_why_not_exact(graph, rounds_prefixes=rounds_prefixes),
            memory=limits.memory,
        )

    def _try_pass(self, make_buffers: MakeBuffers) -> None:
        """Read a few tokens with a small KV cache that is freed afterwards. Raises RunnerFailed if the pass fails."""
        row = Row(0, 0, [1 % self.model.vocab_size] * _TRIED_TOKENS)
        logits = np.empty((1, self.model.vocab_size), self.graph.logits_type)
        self.session.use(make_buffers(self.graph, 1, _TRIED_TOKENS), RowStates(self.graph, 1), logits)
        self.session.scores(lay_out([row], self.graph))
        self.session.release()

    @property
    def nodes(self) -> Mapping[str, int | None]:
        return node_shares(self.session.session)

    def open(self, sequence: Sequence) -> int:
        is_long = self.is_long(sequence)
        num_read = self.slots.resume(sequence.id, is_long=is_long) if sequence.num_preemptions else None
        if num_read is None:
            num_read = self.slots.acquire(
                sequence.id,
                sequence.tokens,
                reuse=sequence.reuses_past,
                salt=sequence.cache_salt,
                is_long=is_long,
                tenant=None if sequence.low_priority else sequence.tenant,
            )
        self._give_inputs(sequence)
        return num_read

    def _give_inputs(self, sequence: Sequence) -> None:
        """Assign a sequence's encoded audio and adapter to the slot that the sequence has got."""
        self.slots.of(sequence.id).adapter = sequence.adapter_name
        if sequence.audio is not None:
            self.states.set_audio(self.slots.of(sequence.id).index, sequence.audio.states)
        if self.stack is not None and (weights := self._adapter(sequence)) is not None:
            self.stack.hold(sequence.id, weights)

    def load_adapter(self, path: Path) -> AdapterWeights:
        check_adapter_file(path, adapter_inputs(self.graph.path.parent))
        return load_weights(path, self.graph.low_rank_paths)

    def must_reopen(self, sequence: Sequence) -> bool:
        return self.is_long(sequence) and not self.slots.of(sequence.id).is_long

    def may_draft(self, sequence: Sequence) -> bool:
        # All tokens of a row have either the cosines and sines for short rows or those for long ones.
        is_near = self.switches_at is not None and self.switches_at - MAX_DRAFTED < len(sequence.tokens)
        if not super().may_draft(sequence) or (is_near and not self.slots.of(sequence.id).is_long):
            return False
        # All logits of each token of a draft would have to be copied.
        return not (self.session.offers_best and needs_all_logits(sequence))

    def reserved(self, maximum: int) -> KvBudget:
        return self.slots.reserved(maximum)

    def match_again(self, sequence: Sequence) -> int:
        return self.slots.match_again(sequence.id, sequence.prompt)

    def fit_chunk(self, sequence: Sequence, maximum: int) -> int:
        if self.session.offers_best and sequence.wants_positions:
            maximum = min(maximum, MAX_POSITIONS)
        chunk = super().fit_chunk(sequence, maximum)
        if not self._has_states or not self.slots.has(sequence.id) or sequence.num_produced:
            return chunk
        num_common = self.slots.of(sequence.id).num_common - sequence.num_read
        return before_checkpoint(chunk, sequence.num_unread, num_common)

    def forward(self, chunks: abc.Sequence[ScheduledChunk]) -> list[Scores]:
        if self._has_states:
            self.states.accept_nothing()
        index = self.slots.of(chunks[0].sequence.id).index
        interrupts = self._interrupts(chunks)
        prefix = self._profiles.get(chunks[0].sequence.id, "") if len(chunks) == 1 else ""
        options = self.session.new_options(prefix) if interrupts or prefix else None
        if interrupts:
            self._allow_interrupts(options)
        saved = self.states.save(index) if self._has_states and interrupts else None
        try:
            scores = self._forward(chunks, options)
        except Interrupted:
            if saved is not None:
                self.states.load(index, saved)
            raise
        except Exception:
            for chunk in chunks:
                self.slots.spoil(chunk.sequence.id)
            raise
        finally:
            self._interruptible = None
            self.lapse()
        if self._has_states:
            self._keep_checkpoints(chunks)
        return scores

    def _keep_checkpoints(self, chunks: abc.Sequence[ScheduledChunk]) -> None:
        """Save copies of recurrent states (checkpoints) after those chunks at whose ends other prompts are likely to
        differ, such as the end of a prompt.

        After other chunks, a checkpoint is saved only if reading the tokens since the last one again would cost more
        than the checkpoint's memory.
        """
        for chunk in chunks:
            left = chunk.sequence.num_unread - chunk.num_tokens
            if not chunk.decodes:
                behind = self.slots.of(chunk.sequence.id).num_common - chunk.sequence.num_read - chunk.num_tokens
                is_worth = ends_at_checkpoint(left) or is_common_end(behind)
                self.slots.checkpoint(chunk.sequence.id, spacing=1 if is_worth else max(1, self.states.tokens_worth))

    def _interrupts(self, chunks: abc.Sequence[ScheduledChunk]) -> bool:
        """Whether the pass of these chunks may be interrupted: if it has low priority, or reads a single chunk of a
        prompt.
        """
        is_chunk = len(chunks) == 1 and not chunks[0].decodes
        return is_chunk or (self.abilities.interrupts and is_low_priority(chunks))

    def _forward(self, chunks: abc.Sequence[ScheduledChunk], options: Any) -> list[Scores]:
        sequences, rows = [chunk.sequence for chunk in chunks], []
        for chunk in chunks:
            self.slots.reserve(chunk.sequence.id, chunk.num_tokens)
            rows.append(self._row(chunk))
        if any(row.is_alone for row in rows):
            scores = self._in_several_passes(sequences, rows, options)
        else:
            scores = self._pass(sequences, rows, options)
        for chunk in chunks:
            tokens = chunk.tokens[: -len(chunk.draft)] if chunk.draft else chunk.tokens
            self.slots.append(chunk.sequence.id, tokens)
        return scores

    def _in_several_passes(
        self, sequences: abc.Sequence[Sequence], rows: abc.Sequence[Row], options: Any
    ) -> list[Scores]:
        """Run one pass over the rows that share it, and one for each other row. Returns the scores of all rows."""
        together = [number for number, row in enumerate(rows) if not row.is_alone]
        passes = [*([together] if together else []), *([number] for number, row in enumerate(rows) if row.is_alone)]
        found: dict[int, Scores] = {}
        for members in passes:
            scores = self._pass(
                [sequences[number] for number in members], [rows[number] for number in members], options
            )
            # The next pass overwrites the logits.
            found |= zip(members, scores if members is passes[-1] else map(Scores.copy, scores), strict=True)
        return [found[number] for number in range(len(rows))]

    def _pass(self, sequences: abc.Sequence[Sequence], rows: abc.Sequence[Row], options: Any) -> list[Scores]:
        """Run one pass over some rows. `sequences` has the sequence of each row. Returns the scores of each row."""
        layout = self._layout
        if layout is None or not self.graph.is_native or not layout.advance(rows):
            layout = self._layout = lay_out(rows, self.graph)
        scores = self.session.scores(layout, options, with_hidden=self.take_hidden is not None)
        if self.take_hidden is not None:
            for sequence, row, span in zip(sequences, rows, layout.tokens, strict=True):
                self.take_hidden(sequence, row.num_cached, self.session.hidden[0, span])
        return scores

    def _row(self, chunk: ScheduledChunk) -> Row:
        """Return the row of a pass for a chunk: the chunk's tokens, with image features, in the sequence's slot."""
        slot, images = self.slots.of(chunk.sequence.id), chunk.sequence.images
        num_cached = len(slot.tokens)
        num_logits = chunk.num_tokens if chunk.positions else 1 + len(chunk.draft)
        row = Row(
            slot.index,
            num_cached,
            chunk.tokens,
            num_logits,
            slot.is_long,
            ranks=None if self.stack is None else self.stack.ranks(chunk.sequence.id),
            # All logits of its tokens are copied from a device.
            is_alone=self.session.offers_best and chunk.positions,
            num_drafted=len(chunk.draft),
            scale=chunk.sequence.sampler.scale if self.session.offers_best else 1.0,
        )
        if images is None:
            return row
        positions = images.positions(num_cached, chunk.num_tokens) if self.graph.position_axes else None
        return replace(row, tokens=chunk.model_tokens, features=images.features(chunk.tokens), positions=positions)

    def accept(self, sequence: int, tokens: abc.Sequence[int]) -> None:
        if self._has_states:
            try:
                self.states.accept(self.slots.of(sequence).index, len(tokens))
            except Exception:
                self.slots.spoil(sequence)
                raise
        self.slots.append(sequence, list(tokens))

    def forget(self) -> int:
        return self.slots.forget()

    def set_runtime_option(self, sequence: int, option: str, value: str) -> None:
        if option != "enable_profiling":
            super().set_runtime_option(sequence, option, value)
        check_pass_profiles()
        if value == "0":
            self._profiles.pop(sequence, None)
        else:
            self._profiles[sequence] = value

    def end_session(self) -> None:
        self.session.session.end_profiling()

    def close(self, sequence: int) -> None:
        self._profiles.pop(sequence, None)
        if self.stack is not None:
            self.stack.release(sequence)
        if self.slots.has(sequence):
            self.slots.release(sequence)
