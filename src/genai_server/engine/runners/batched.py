"""The runner for continuous batching: one session of ONNX Runtime, in which each forward pass reads tokens of several
sequences.

`BatchedRunner` manages the sequences, and `DecoderSession` runs the passes. The decoder's graph was rewritten so that a
pass can read several sequences (engine/graph_rewriting/ragged.py). Each sequence has a KV cache slot, whose memory is
bound to the session's inputs and outputs, and operators of the graph write new keys and values into it.
"""

from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from genai_server.engine.abilities import Abilities
from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.graph_rewriting.ragged import BEST_LOGITS, BEST_TOKENS, SCALES, SHARES
from genai_server.engine.kv_cache.buffers import (
    BatchBuffers,
    CpuBuffers,
    MakeBuffers,
    RowStates,
    before_checkpoint,
    ends_at_checkpoint,
    is_common_end,
)
from genai_server.engine.kv_cache.kv_slots import KvSlots
from genai_server.engine.kv_cache.layout import Layout, Row, lay_out
from genai_server.engine.kv_cache.paged_buffers import PagedBuffers
from genai_server.engine.model.adapter_file import adapter_inputs, check_adapter_file
from genai_server.engine.model.encoders import TokenEmbedder
from genai_server.engine.model.session import check_pass_profiles, open_state_operators, profile_pass
from genai_server.engine.model.session_options import node_shares
from genai_server.engine.runners.adapters import AdapterStack, AdapterWeights, load_weights
from genai_server.engine.runners.base import INTERRUPTED_MESSAGE, Interrupted, Runner
from genai_server.engine.runners.sequence_limits import BatchLimits
from genai_server.engine.sampling.continuation import needs_all_logits
from genai_server.engine.scheduling.scheduler_output import KvBudget, ScheduledChunk, is_low_priority
from genai_server.engine.scheduling.step_time import MAX_DRAFTED
from genai_server.engine.scores import NUM_BEST, Best, Logits, Scores
from genai_server.engine.sequence import Sequence
from genai_server.errors import RunnerFailed
from genai_server.messages.generation_request import ModelInfo

# Tokens of a chunk all of whose logits are computed on a device. With 150,000 tokens, they take 0.16 GB of its memory.
MAX_POSITIONS = 256
# Of the first pass. Most passes read more tokens than they give logits, too.
_TRIED_TOKENS = 3
TakeHidden = Callable[[Sequence, int, NDArray[Any]], None]


class PassBinding:
    """An IO binding of ONNX Runtime, which says where a pass reads its inputs and writes its outputs. It remembers what
    is bound, so that an array that is bound already is not bound again in each pass.
    """

    def __init__(self, binding: Any) -> None:
        self.io = binding
        self._inputs: dict[str, NDArray[Any]] = {}
        # Address and shape of each output.
        self._outputs: dict[str, tuple[int, tuple[int, ...]]] = {}
        # The layout whose arrays are bound, and the outputs of its pass; None if a pass needs other arrays, too.
        self.bound: tuple[Layout, Mapping[str, NDArray[Any]]] | None = None

    def give(self, name: str, values: NDArray[Any]) -> None:
        """Let a pass read the input `name` from an array in CPU memory. If this array is bound already, nothing is
        done, because the next pass reads the array's current values.
        """
        if self._inputs.get(name) is not values:
            self.io.bind_cpu_input(name, values)
            self._inputs[name] = values

    def write_to(self, name: str, array: NDArray[Any]) -> None:
        """Let a pass write the output `name` to an array in CPU memory. The caller must keep the array as long as it is
        bound.
        """
        target = array.ctypes.data, array.shape
        if self._outputs.get(name) != target:
            self.io.bind_output(name, "cpu", 0, array.dtype, array.shape, target[0])
            self._outputs[name] = target

    def keep(self, name: str, buffers: BatchBuffers) -> None:
        """Let ONNX Runtime allocate the output `name` in each pass, in the memory of the device that computes it.
        `buffers` says which memory that is.
        """
        buffers.keep(self.io, name)
        self._outputs.pop(name, None)


class _LastPass(NamedTuple):
    """The arrays and scores of the last pass. The next pass uses them again if it has the same `layout` object, which
    it has if each row goes on with its next token.
    """

    layout: Layout
    # The outputs by name, and the scores of each row in these.
    wanted: Mapping[str, NDArray[Any]]
    scores: list[Scores]


class DecoderSession:
    """Runs the forward passes of a decoder in an ONNX Runtime session. A BatchedRunner creates it and gives it the KV
    cache by `use`, without which no pass can run.

    The session has one IO binding for passes with draft tokens and another one for passes without, because binding the
    KV cache of every layer anew in each pass would take 0.7 ms.
    """

    def __init__(
        self,
        graph: DecoderGraph,
        session: Any,
        *,
        adapters: AdapterStack | None,
        embedder: TokenEmbedder | None,
        run_entries: Mapping[str, str],
    ) -> None:
        self.session = session
        self._adapters = adapters
        self._embedder = embedder  # of a graph that takes embeddings
        self._run_entries = dict(run_entries)  # run options of every pass
        # Run options of passes that are never interrupted. Without entries such passes get no options, because with
        # options ONNX Runtime's Python layer raises and catches an exception in each pass.
        self._options = self.new_options() if run_entries else None
        self.offers_best = BEST_LOGITS in {value.name for value in session.get_outputs()}
        self._graph = graph
        self._inputs = {value.name for value in session.get_inputs()}
        self._outputs = {graph.logits, *((BEST_LOGITS, BEST_TOKENS, SHARES) if self.offers_best else ())}
        if graph.hidden_output:
            self._outputs.add(graph.hidden_output)
        self.release()

    def release(self) -> None:
        """Drop the references to the KV cache and the recurrent states, so that their memory can be freed. No pass can
        run until `use` is called again.
        """
        vars(self).pop("_buffers", None)
        vars(self).pop("_states", None)
        # By whether there are drafts.
        self._bindings: dict[bool, PassBinding] = {}
        self._bound_version = -1

    def use(self, buffers: BatchBuffers, states: RowStates, logits: NDArray[Any]) -> None:
        """Set the KV cache and the recurrent states that the following passes read and write. If others were set
        before, `release` must have been called.

        A pass writes its logits to the array `logits` [positions, vocab_size], or to a new array if it has more
        positions.
        """
        self._buffers, self._states, self._step_logits = buffers, states, logits
        self._last: _LastPass | None = None

    def new_options(self, profile_prefix: str = "") -> Any:
        """Return new run options of ONNX Runtime for a pass. With a `profile_prefix`, ONNX Runtime profiles the pass
        into a file whose path begins with it. Raises RunnerFailed if the installed ONNX Runtime cannot do that.
        """
        options = onnxruntime.RunOptions()
        for name, value in self._run_entries.items():
            options.add_run_config_entry(name, value)
        if profile_prefix:
            profile_pass(options, profile_prefix)
        return options

    def scores(self, layout: Layout, options: Any = None, *, with_hidden: bool = False) -> list[Scores]:
        """Run a pass over the rows in `layout`. Returns the scores of each row, whose arrays the next pass overwrites.

        On a device with memory of its own, only the highest logits are copied to the host at first, and all logits when
        they are needed. With `with_hidden`, the hidden states of all tokens, [1, tokens, hidden_size], are stored in
        the attribute `hidden`. `options` are run options of ONNX Runtime; None stands for those of all passes. Raises
        Interrupted and RunnerFailed.
        """
        wanted: dict[str, NDArray[Any]] = {}
        last = self._last
        if last is not None and last.layout is layout and not with_hidden:
            self.run(layout, last.wanted, options)
            return last.scores
        if with_hidden:
            self.hidden = np.empty((1, layout.num_tokens, self._graph.hidden_size), self._graph.logits_type)
            wanted[self._graph.hidden_output] = self.hidden
        if self.offers_best:
            shape = (1, layout.num_logits, NUM_BEST)
            best, tokens = np.empty(shape, np.float32), np.empty(shape, np.int64)
            shares = np.empty((*shape[:2], 1), np.float32)
            device_logits = self.run(
                layout, {BEST_LOGITS: best, BEST_TOKENS: tokens, SHARES: shares, **wanted}, options
            )
            scales = layout.inputs[SCALES][:, 0]
            every = range(layout.num_logits)
            highest = Best(best[0], tokens[0], shares[0, :, 0], scales, every, partial(self._read, device_logits))
            return [Scores(best=highest.at(positions)) for positions in layout.logits]
        logits = self._logits(layout.num_logits)
        wanted[self._graph.logits] = logits[np.newaxis]
        self.run(layout, wanted, options)
        text_logits = self._without_images(logits.astype(np.float32, copy=False))
        scores = [Scores(text_logits[positions]) for positions in layout.logits]
        is_steady = self._embedder is None and text_logits is logits and not with_hidden
        self._last = _LastPass(layout, wanted, scores) if is_steady else None
        return scores

    def _read(self, device_logits: Any, positions: range) -> Logits:
        """Copy the logits of a pass at the positions `positions` from the device's memory. Returns them as [positions,
        vocab_size].

        `device_logits` is the OrtValue with all logits of the pass in the device's memory.
        """
        assert isinstance(self._buffers, PagedBuffers)  # else the session does not offer the best
        return self._without_images(self._buffers.read(device_logits, positions))

    def _without_images(self, logits: Logits) -> Logits:
        """Set the logit of the placeholder token for image features to minus infinity, in place, so that it is never
        chosen. Returns `logits` [positions, vocab_size]. Does nothing if the model takes no images or audio.
        """
        if self._embedder is not None:
            logits[:, self._embedder.image_token] = -np.inf
        return logits

    def _logits(self, num_logits: int) -> NDArray[Any]:
        """Return an array [num_logits, vocab_size] to which a pass can write its logits: a part of the array that `use`
        has set or, if that is too small, a new one.
        """
        logits = self._step_logits[:num_logits]
        if len(logits) < num_logits:
            logits = np.empty((num_logits, self._step_logits.shape[1]), self._graph.logits_type)
        return logits

    def run(self, layout: Layout, wanted: Mapping[str, NDArray[Any]], options: Any = None) -> Any:
        """Run a pass over the rows in `layout`, and write its outputs to arrays. `wanted` maps the names of outputs to
        the arrays.

        `options` are run options of ONNX Runtime; None stands for those of all passes. Returns the logits as an
        OrtValue if they are in a device's memory, otherwise None. Raises Interrupted and RunnerFailed.
        """
        binding = self.bind(layout, wanted)
        try:
            self.session.run_with_iobinding(binding.io, self._options if options is None else options)
        except RuntimeError as error:
            if INTERRUPTED_MESSAGE in str(error):
                raise Interrupted from None
            raise RunnerFailed(f"onnxruntime: {error}") from error
        else:
            if self._returns_recurrent_inputs(layout):
                self._states.passed(layout, self._recurrent_inputs(binding))
            return binding.io.get_outputs_as_ortvaluevector()[0] if self.offers_best else None
        finally:
            self._let_runtime_allocate(binding, wanted)

    def bind(self, layout: Layout, wanted: Mapping[str, NDArray[Any]]) -> PassBinding:
        """Return the IO binding for a pass over the rows in `layout`, with all inputs and outputs bound.

        `wanted` maps the names of outputs to the arrays into which the pass writes them. ONNX Runtime allocates all
        other outputs.
        """
        binding = self._binding(keeps_read=self._returns_recurrent_inputs(layout))
        if binding.bound is not None and binding.bound[0] is layout and binding.bound[1] is wanted:
            return binding
        inputs, give = layout.inputs, binding.give
        if isinstance(self._buffers, PagedBuffers):
            inputs, give = inputs | self._buffers.inputs(layout.rows), partial(self._buffers.give, binding.io)
        tokens = layout.ids if self._embedder is None else self._embedder.embed(layout.ids, layout.features)
        positions = self._positions(layout)
        # A binding does not own what is bound to it.
        self._bound = tokens, positions, layout.hidden, inputs
        give(self._graph.input_ids, tokens)
        if self._graph.position_ids is not None:
            give(self._graph.position_ids, positions)
        if layout.hidden is not None:
            give(self._graph.hidden_input, layout.hidden)
        for name, values in inputs.items():
            if name in self._inputs:  # a graph need not have all of them
                give(name, values)
        for name, array in wanted.items():
            binding.write_to(name, array)
        self._let_runtime_allocate(binding, wanted)
        has_own = (
            self._embedder is None and positions is layout.positions and not isinstance(self._buffers, PagedBuffers)
        )
        binding.bound = (layout, wanted) if has_own else None
        return binding

    def _returns_recurrent_inputs(self, layout: Layout) -> bool:
        """Whether a pass over the rows in `layout` must also return the inputs of the operators with recurrent states.
        It must if it reads draft tokens, because the states after the accepted ones are computed from these inputs
        later.
        """
        return bool(self._states.read) and layout.has_drafts

    def _recurrent_inputs(self, binding: PassBinding) -> dict[str, Any]:
        """Return the inputs of the operators with recurrent states in a finished pass, as OrtValues by name. `binding`
        is the pass's binding, which no longer references them afterwards.
        """
        values = binding.io.get_outputs_as_ortvaluevector()
        inputs = {name: values[number] for number, name in enumerate(self._states.read)}
        for name in inputs:
            binding.keep(name, self._buffers)
        return inputs

    def _positions(self, layout: Layout) -> NDArray[np.int64]:
        axes = self._graph.position_axes
        return np.broadcast_to(layout.positions, (axes, *layout.ids.shape)).copy() if axes else layout.positions

    def _let_runtime_allocate(self, binding: PassBinding, wanted: Mapping[str, NDArray[Any]]) -> None:
        """Let ONNX Runtime allocate the outputs that are not in `wanted`, in the memory of the device that computes
        them.

        This is called before a pass and again after it, because a binding otherwise keeps the last pass's outputs in
        memory.
        """
        for name in self._outputs - wanted.keys():
            binding.keep(name, self._buffers)

    def _binding(self, *, keeps_read: bool) -> PassBinding:
        version = 0 if self._adapters is None else self._adapters.version
        if version != self._bound_version:  # the adapters' weights lie elsewhere
            self._bindings.clear()
            self._bound_version = version
        binding = self._bindings.get(keeps_read)
        if binding is None:
            binding = self._bindings[keeps_read] = PassBinding(self.session.io_binding())
            if self.offers_best:  # first, so that its index among the outputs is known
                binding.keep(self._graph.logits, self._buffers)
            if keeps_read:  # first, so that their indices among the outputs are known
                for name in self._states.read:
                    binding.keep(name, self._buffers)
            self._buffers.bind(binding.io)
            self._states.bind(binding.io)
            if self._adapters is not None:
                self._adapters.bind(binding.io)
        return binding


def _why_not_exact(graph: DecoderGraph, *, rounds_prefixes: bool) -> str:
    """Return the reason why a token's result (its logits) may depend on the other tokens of a pass, or on the prefix
    cache; "" if it is always bitwise the same, so that the runner can serve requests with `exact`.

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
    """Runs a decoder for several sequences in each forward pass (continuous batching), with a session of ONNX Runtime.
    Each open sequence has a slot of the KV cache. An engine creates it when its model's graph can run in a batch.
    """

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

        `graph` describes the graph that `session`, an ONNX Runtime session, runs. `limits` has the number of slots, the
        maximum length of a sequence and the memory of the slots. `rounds_prefixes` says whether prefixes are stored on
        disk with 16 bits instead of 32. `run_entries` are run options of ONNX Runtime for every pass, and
        `make_buffers` allocates the KV cache in the memory of a CPU or GPU.
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
        """Read a few tokens with a small KV cache that is freed afterwards, so that a pass that fails does so before
        the KV cache is allocated. Raises RunnerFailed if the pass fails.
        """
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
        """Assign the encoded audio and the LoRA adapter of a sequence, if it has them, to the KV cache slot of the
        sequence. Raises RunnerFailed if there is no memory for the adapter.
        """
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
            self.states.discard_drafts()
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
                self.slots.discard_after_failure(chunk.sequence.id)
            raise
        finally:
            self._interruptible = None
            self.cancel_interrupt()
        if self._has_states:
            self._keep_checkpoints(chunks)
        return scores

    def _keep_checkpoints(self, chunks: abc.Sequence[ScheduledChunk]) -> None:
        """After a pass, save copies of the recurrent states (checkpoints) of sequences in `chunks` whose prompts were
        read, so that later prompts with the same beginning can go on from there.

        A checkpoint is always saved where other prompts are likely to differ from this one, such as near the end of a
        prompt. Elsewhere it is saved only if reading the tokens since the last checkpoint again would cost more than
        the checkpoint's memory.
        """
        for chunk in chunks:
            num_left = chunk.sequence.num_unread - chunk.num_tokens
            if not chunk.decodes:
                behind = self.slots.of(chunk.sequence.id).num_common - chunk.sequence.num_read - chunk.num_tokens
                is_worthwhile = ends_at_checkpoint(num_left) or is_common_end(behind)
                self.slots.checkpoint(
                    chunk.sequence.id, spacing=1 if is_worthwhile else max(1, self.states.state_size_in_tokens)
                )

    def _interrupts(self, chunks: abc.Sequence[ScheduledChunk]) -> bool:
        """Whether `interrupt` may end the pass of these chunks. It may if all have low priority and the model has no
        recurrent states, or if the pass reads a single chunk of a prompt.
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
        """Run one pass over all rows that can share a pass, and a pass of its own for each row with `is_alone`, which
        needs all logits of its tokens. Returns the scores of all rows, in order.

        `sequences` has the sequence of each row, and `options` are run options of ONNX Runtime or None.
        """
        together = [number for number, row in enumerate(rows) if not row.is_alone]
        passes = [*([together] if together else []), *([number] for number, row in enumerate(rows) if row.is_alone)]
        by_row: dict[int, Scores] = {}
        for members in passes:
            scores = self._pass(
                [sequences[number] for number in members], [rows[number] for number in members], options
            )
            # The next pass overwrites the logits.
            by_row |= zip(members, scores if members is passes[-1] else map(Scores.copy, scores), strict=True)
        return [by_row[number] for number in range(len(rows))]

    def _pass(self, sequences: abc.Sequence[Sequence], rows: abc.Sequence[Row], options: Any) -> list[Scores]:
        """Run one pass over `rows`, and pass on the hidden states if a head for multi-token prediction reads them.
        Returns the scores of each row.

        `sequences` has the sequence of each row, and `options` are run options of ONNX Runtime or None.
        """
        layout = self._layout
        if layout is None or not self.graph.is_native or not layout.advance(rows):
            layout = self._layout = lay_out(rows, self.graph)
        scores = self.session.scores(layout, options, with_hidden=self.take_hidden is not None)
        if self.take_hidden is not None:
            for sequence, row, span in zip(sequences, rows, layout.tokens, strict=True):
                self.take_hidden(sequence, row.num_cached, self.session.hidden[0, span])
        return scores

    def _row(self, chunk: ScheduledChunk) -> Row:
        """Return the row of a pass for a chunk: the chunk's tokens, with the features of images or audio in them, and
        the KV cache slot of the chunk's sequence.
        """
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
                self.slots.discard_after_failure(sequence)
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
