"""ONNX Runtime sessions of a decoder's ragged graph (engine/model/ragged.py), bound to KV cache slots."""

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.model.graph import DecoderGraph
from genai_server.engine.model.output_head import BEST_LOGITS, BEST_TOKENS, SHARES
from genai_server.engine.model.vision import TokenEmbedder
from genai_server.engine.runners.adapter_stack import AdapterStack
from genai_server.engine.runners.buffers import BatchBuffers
from genai_server.engine.runners.layout import Layout
from genai_server.engine.runners.paged_buffers import PagedBuffers
from genai_server.engine.runners.row import Ranks, SlotSpan, Span
from genai_server.engine.runners.row_states import RowStates

# Maximum number of kept bindings. Binding two names for each layer in every pass would cost 0.7 ms.
_MAX_BINDINGS = 256

# Of attention, of states, and of adapters with the version of their stack; with whether the states are kept, because
# there are drafts.
Spans = tuple[tuple[SlotSpan, ...], tuple[Span, Span, Span] | None, tuple[Ranks, int] | None, bool]


class DecoderSession:
    """A session and the bindings of its passes, by the ranges of slots of the two groups."""

    def __init__(
        self, graph: DecoderGraph, session: Any, adapters: AdapterStack | None, embedder: TokenEmbedder | None = None
    ) -> None:
        self.session = session
        self._adapters = adapters
        self._embedder = embedder  # of a graph that takes embeddings
        self.offers_best = BEST_LOGITS in {value.name for value in session.get_outputs()}
        self._graph = graph
        self._inputs = {value.name for value in session.get_inputs()}
        self._outputs = {graph.logits, *((BEST_LOGITS, BEST_TOKENS, SHARES) if self.offers_best else ())}
        if graph.hidden_output:
            self._outputs.add(graph.hidden_output)
        self.release()

    def release(self) -> None:
        """Let go of the buffers; no pass until `use`."""
        vars(self).pop("_buffers", None)
        vars(self).pop("_states", None)
        self._bindings: OrderedDict[Spans, Any] = OrderedDict()

    def use(self, buffers: BatchBuffers, states: RowStates) -> None:
        """Use the slots of these buffers, and these states, from now on. Those before must have been released."""
        self._buffers, self._states = buffers, states

    def bind(self, layout: Layout, wanted: Mapping[str, NDArray[Any]]) -> Any:
        """The binding for a pass; `wanted` maps output names to the arrays that the pass writes."""
        adapters = None
        if self._adapters is not None and layout.ranks is not None:
            adapters = layout.ranks, self._adapters.version
        binding = self._binding((layout.spans, layout.state_spans, adapters, layout.num_drafted > 0))
        inputs, give = layout.inputs, binding.bind_cpu_input
        if isinstance(self._buffers, PagedBuffers):
            inputs, give = inputs | self._buffers.inputs(layout.rows), partial(self._buffers.give, binding)
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
            if name in self._inputs:  # a graph may have one kind of states only
                give(name, values)
        # Bound again each time: the binding would otherwise still write to the arrays of the last pass.
        for name, array in wanted.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        self.keep_unread(binding, wanted)
        return binding

    def left(self, binding: Any) -> Any:
        """The logits that a pass left on the device, as an OrtValue."""
        return binding.get_outputs_as_ortvaluevector()[0]

    def unverified(self, binding: Any) -> dict[str, Any]:
        """What a pass with drafts gave of its states, as OrtValues by their names. The binding lets go of them."""
        values = binding.get_outputs_as_ortvaluevector()
        found = {name: values[number] for number, name in enumerate(self._states.unverified)}
        for name in found:
            self._buffers.keep(binding, name)
        return found

    def _positions(self, layout: Layout) -> NDArray[np.int64]:
        axes = self._graph.position_axes
        return np.broadcast_to(layout.positions, (axes, *layout.ids.shape)).copy() if axes else layout.positions

    def keep_unread(self, binding: Any, wanted: Mapping[str, NDArray[Any]]) -> None:
        """Leave unwanted outputs in the memory where they are computed.

        Called before a pass, and again after it: a binding otherwise keeps its outputs as long as it lives.
        """
        for name in self._outputs - wanted.keys():
            self._buffers.keep(binding, name)

    def _binding(self, spans: Spans) -> Any:
        binding = self._bindings.get(spans)
        if binding is None:
            if len(self._bindings) == _MAX_BINDINGS:
                self._bindings.popitem(last=False)
            binding = self._bindings[spans] = self.session.io_binding()
            of_attention, of_states, of_adapters, has_drafts = spans
            if self.offers_best:  # first, so that its place among the outputs is known
                self._buffers.keep(binding, self._graph.logits)
            if has_drafts:  # first, so that their places among the outputs are known
                for name in self._states.unverified:
                    self._buffers.keep(binding, name)
            self._buffers.bind(binding, of_attention)
            if of_states is not None:
                self._states.bind(binding, of_states, drafted=has_drafts)
            if self._adapters is not None and of_adapters is not None:
                self._adapters.bind(binding, of_adapters[0])
        self._bindings.move_to_end(spans)
        return binding
