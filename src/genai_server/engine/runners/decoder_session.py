"""ONNX Runtime sessions of a decoder, bound to KV cache slots.

A binding is kept for each range of slots. Binding two names for each layer in every pass would cost 0.7 ms.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.model.graph import DecoderGraph
from genai_server.engine.model.mixed_step import CHUNK, DECODE, LAST, LONGEST, ROWS, SPLIT
from genai_server.engine.model.output_head import BEST_LOGITS, BEST_TOKENS, FIRST_POSITION
from genai_server.engine.runners.buffers import BatchBuffers

Ids = NDArray[np.int64]


class DecoderSession:
    """Passes over a range of slots: one new token for each slot, or several tokens for one slot."""

    def __init__(self, graph: DecoderGraph, session: Any) -> None:
        self.session = session
        self.chooses_positions = FIRST_POSITION in {value.name for value in session.get_inputs()}
        self.offers_best = BEST_LOGITS in {value.name for value in session.get_outputs()}
        self._graph = graph
        self.release()

    def release(self) -> None:
        """Let go of the buffers; no pass until `use`."""
        vars(self).pop("_buffers", None)
        self._bindings: dict[tuple[int, int], Any] = {}
        self._steps: dict[int, Any] = {}  # of decode steps, by their rows

    def use(self, buffers: BatchBuffers, num_rows: int, max_length: int) -> None:
        """Use the slots of these buffers from now on. Those before must have been released."""
        self._buffers = buffers
        self._places = np.arange(self._graph.slot_length(max_length))
        # Shared by all passes, because every binding would otherwise keep its own last mask.
        self._mask = np.empty(num_rows * len(self._places), np.int64)

    def bind_step(self, ids: Ids, lengths: Ids, logits: NDArray[Any]) -> Any:
        """The binding for a decode step of `ids` [rows, 1] over the slots from 0 on.

        `lengths` [rows] are the slots' lengths after the step, which writes `logits` [rows, 1, vocab_size]. All steps
        of so many rows must have the same array for them: only the inputs are bound again.
        """
        rows = len(ids)
        binding = self._steps.get(rows)
        if binding is None:
            binding = self._steps[rows] = self.session.io_binding()
            self._buffers.bind(binding, 0, rows)
            if self.chooses_positions:
                binding.bind_cpu_input(FIRST_POSITION, np.array([-1]))
            binding.bind_output(self._graph.logits, "cpu", 0, logits.dtype, logits.shape, logits.ctypes.data)
            self.keep_unread(binding, {self._graph.logits: logits})
        self._bind_rows(binding, ids, lengths)
        return binding

    def bind(self, ids: Ids, first: int, lengths: Ids, told: int, wanted: Mapping[str, NDArray[Any]]) -> Any:
        """The binding for a pass of `ids` [rows, new] over the slots from `first` on.

        `lengths` [rows] are the slots' lengths after the pass. The output head computes `told` positions. `wanted` maps
        output names to the arrays that the pass writes.
        """
        rows = len(ids)
        if (first, rows) not in self._bindings:
            self._bindings[first, rows] = self.session.io_binding()
            self._buffers.bind(self._bindings[first, rows], first, rows)
        binding = self._bindings[first, rows]
        self._bind_rows(binding, ids, lengths)
        if self.chooses_positions:
            binding.bind_cpu_input(FIRST_POSITION, np.array([-told]))
        # Bound again each time: the binding would otherwise still write to the arrays of the last pass.
        for name, array in wanted.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        self.keep_unread(binding, wanted)
        return binding

    def _bind_rows(self, binding: Any, ids: Ids, lengths: Ids) -> None:
        """Bind the input ids [rows, new], and what follows from the rows' lengths [rows] after the pass."""
        rows, new = ids.shape
        width = int(lengths.max())
        mask = self._mask[: rows * width].reshape(rows, width)
        np.less(self._places[:width], lengths[:, None], out=mask)
        binding.bind_cpu_input(self._graph.input_ids, ids)
        binding.bind_cpu_input(self._graph.attention_mask, mask)
        if self._graph.position_ids is not None:
            binding.bind_cpu_input(self._graph.position_ids, lengths[:, None] - new + self._places[:new])

    def keep_unread(self, binding: Any, wanted: Mapping[str, NDArray[Any]]) -> None:
        """Leave unwanted outputs in the memory where they are computed.

        Called before a pass, and again after it: a binding otherwise keeps its outputs as long as it lives.
        """
        offered = (BEST_LOGITS, BEST_TOKENS) if self.offers_best else ()
        for name in {self._graph.logits, *offered} - wanted.keys():
            self._buffers.keep(binding, name)


class MixedSession:
    """Passes that decode the rows from slot 0 on and read a chunk of another slot's prompt.

    The graph comes from engine/model/mixed_step.py.
    """

    def __init__(self, graph: DecoderGraph, session: Any) -> None:
        self.session = session
        self._graph = graph
        self.release()

    def release(self) -> None:
        """Let go of the buffers; no pass until `use`."""
        vars(self).pop("_buffers", None)
        self._bindings: dict[tuple[int, int], Any] = {}

    def use(self, buffers: BatchBuffers) -> None:
        """Use the slots of these buffers from now on. Those before must have been released."""
        self._buffers = buffers

    def bind(
        self,
        ids: Ids,
        lengths: Ids,
        slot: int,
        chunk: Sequence[int],
        before: int,
        rows: list[int],
        logits: NDArray[Any],
    ) -> Any:
        """The binding for a pass of `ids` [rows, 1] and of a chunk for a slot with `before` cached tokens.

        `lengths` [rows] are the rows' lengths after the pass. The pass writes `logits` [1, wanted + 1, vocab_size]:
        those of the wanted `rows`, then those after the chunk's last token.
        """
        num_rows, num_read = len(ids), len(chunk)
        if (num_rows, slot) not in self._bindings:
            binding = self._bindings[num_rows, slot] = self.session.io_binding()
            self._buffers.bind(binding, 0, num_rows, DECODE)
            self._buffers.bind(binding, slot, 1, CHUNK)
        binding = self._bindings[num_rows, slot]
        flat = np.concatenate([ids[:, 0], np.array(chunk, np.int64)])[np.newaxis]
        binding.bind_cpu_input(self._graph.input_ids, flat)
        binding.bind_cpu_input(SPLIT, np.array([num_rows, num_read]))
        binding.bind_cpu_input(ROWS, np.array([*rows, num_rows + num_read - 1]))
        if self._graph.position_ids is not None:
            positions = np.concatenate([lengths - 1, np.arange(before, before + num_read)])
            binding.bind_cpu_input(self._graph.position_ids, positions[np.newaxis])
        for part, after in ((DECODE, lengths), (CHUNK, np.array([before + num_read]))):
            binding.bind_cpu_input(part + LAST, (after - 1).astype(np.int32))
            binding.bind_cpu_input(part + LONGEST, np.array(after.max(), np.int32))
        binding.bind_output(self._graph.logits, "cpu", 0, logits.dtype, logits.shape, logits.ctypes.data)
        return binding
