"""What a pass with drafts leaves of the states of its rows, before it is known how much of the drafts is accepted.

Such a pass does not change the states themselves. It gives the last inputs of the convolutions, of which a state is a
part, and what the linear attentions have read. From these, the states behind any of the draft's tokens are made. For a
linear attention that is a second run of this operator, over the accepted tokens of one row: cheaper than the copies of
its states that would otherwise be needed to go back, and than reading the accepted tokens again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from genai_server.engine.decoder_graph import LayerState
from genai_server.engine.graph_rewriting.groups import NARROW
from genai_server.engine.graph_rewriting.ragged_states import STATES, padded_inputs
from genai_server.engine.kv_cache.layout import Layout
from genai_server.engine.kv_cache.row import Row

# The arrays of a state, [rows, …].
StateArrays = Sequence[tuple[LayerState, NDArray[Any]]]


def unverified_outputs(convolutions: StateArrays, recurrences: StateArrays) -> list[str]:
    """The outputs of a pass with drafts that are kept."""
    kept = [STATES + state.present for state, _ in convolutions]
    return kept + [name for state, _ in recurrences for name in padded_inputs(NARROW, state.past).values()]


class UnverifiedStates:
    """The outputs of one pass, as ONNX Runtime's OrtValues on the CPU by their names."""

    def __init__(self, values: Mapping[str, Any], layout: Layout) -> None:
        assert layout.state_spans is not None
        self._values = values
        self._num_drafted = layout.num_drafted
        (self._narrow_first, _), _, (self._first, _) = layout.state_spans
        self._narrow = layout.narrow_slots
        self._staged = {name: value.numpy() for name, value in values.items() if name.startswith(STATES)}

    def write_convolutions(self, row: Row, num_rejected: int, arrays: StateArrays) -> None:
        """Write the states behind the tokens of a row, without the last ones, which are rejected."""
        start = self._num_drafted - num_rejected
        for state, array in arrays:
            staged = self._staged[STATES + state.present]
            array[row.slot] = staged[row.slot - self._first, start : start + state.shape[0]]

    def write_recurrences(self, row: Row, num_rejected: int, arrays: StateArrays, session: Any) -> None:
        """The same of linear attention. The session has the recurrences alone; it updates the states in place."""
        if row.slot not in self._narrow or not arrays:
            return  # the pass has updated it
        num_tokens, place = len(row.tokens) - num_rejected, row.slot - self._narrow_first
        binding = session.io_binding()
        for state, array in arrays:
            for name in padded_inputs(NARROW, state.past).values():
                value = self._values[name]
                _, width, channels = value.shape()
                start = value.data_ptr() + place * width * channels * array.itemsize
                binding.bind_input(name, "cpu", 0, array.dtype, (1, num_tokens, channels), start)
            view = array[row.slot : row.slot + 1]
            binding.bind_input(NARROW + state.past, "cpu", 0, array.dtype, view.shape, view.ctypes.data)
            binding.bind_output(NARROW + state.present, "cpu", 0, array.dtype, view.shape, view.ctypes.data)
        session.run_with_iobinding(binding)
