"""Recurrent states, which some layers have for each sequence in a fixed size, in place of a KV cache.

The operators of a pass write the states to the slots (engine/graph_rewriting/ragged.py), but leave out draft
tokens, because it is not known yet which of them are accepted. Afterwards a session with only these operators reads the
accepted draft tokens again, from intermediate outputs of the pass. That costs less than saving the states before each
pass, and less than reading the tokens again with the whole model.

As the state for fewer tokens cannot be computed from a later one, copies of a sequence's states are saved
(checkpoints). This is done after those numbers of prompt tokens at which other prompts are likely to differ: at the end
of the prompt, a little before the end, and where the tokens of another slot were different.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.graph_rewriting.native_attention import COMMITTED, NATIVE, SLOTS, STARTS
from genai_server.engine.kv_cache.layout import Layout

# A prompt of at least this many unread tokens has a checkpoint near its end.
_MIN_UNREAD = 32
# Tokens behind that checkpoint, at least. The next prompt of a conversation often differs in the last ones, which begin
# the answer.
_BEHIND = 6
# Checkpoints lie at multiples of this behind cached tokens, so that prompts that differ a little have the same ones.
_GROUP = 8


def before_checkpoint(chunk: int, num_left: int, num_common: int = 0) -> int:
    """Return how many tokens of a prompt to read next, so that the chunk does not go beyond the next checkpoint of
    states.

    `chunk` is the number of tokens to read if no checkpoint is among them. There is a checkpoint near the end of the
    prompt, of which `num_left` tokens are unread, and one after the next `num_common` tokens if other prompts begin
    with them.
    """
    end = (num_left - _BEHIND) // _GROUP * _GROUP if num_left >= _MIN_UNREAD else 0
    common = num_common // _GROUP * _GROUP if num_common >= _MIN_UNREAD else 0
    return min((border for border in (common, end) if 0 < border < chunk), default=chunk)


def ends_at_checkpoint(num_left: int) -> bool:
    """Whether to save a checkpoint after a chunk because only `num_left` tokens of its prompt are left.

    The next prompt of a conversation continues from the end of this prompt if it leaves out the reasoning of the
    answer. It continues from a little before the end if its chat template also leaves out the last tokens of this
    prompt.
    """
    return num_left < _MIN_UNREAD


def is_common_end(num_behind: int) -> bool:
    """Whether to save a checkpoint because the prefix that the prompt has in common with others ends `num_behind`
    tokens later, which must be only a few.
    """
    return 0 <= num_behind < _GROUP


# A copy of one row's states.
Saved = list[NDArray[Any]]


class _Drafted(NamedTuple):
    """The draft tokens of a row. Until some of them are accepted, the row's states are those before the draft."""

    # Index of the first draft token among the flat tokens of the pass.
    first: int
    # Intermediate outputs of the pass, as OrtValues [1, tokens, …] by name.
    values: Mapping[str, Any]


class RowStates:
    """The recurrent states of all layers and slots in CPU memory: one array [rows, …] for each state.

    `operators` is a session with only those operators of the graph that have states (engine/model/session.py), which is
    needed for speculative decoding; None without it.
    """

    def __init__(self, graph: DecoderGraph, num_rows: int, operators: Any = None) -> None:
        states = (*graph.conv_states, *graph.recurrent_states)
        self._states = {NATIVE + state.past: np.zeros((num_rows, *state.shape), np.float32) for state in states}
        self._audio = {
            NATIVE + state.past: np.zeros((num_rows, *state.shape), state.type) for state in graph.cross_states
        }
        # Tokens whose keys and values take as much memory as a row's states.
        self.tokens_worth = graph.bytes_per_row // graph.bytes_per_token
        # The arrays that a checkpoint copies.
        self.arrays = list(self._states.values())
        self._operators = operators
        # Names of the outputs that a pass with drafts must give: what the operators have read of its tokens.
        self.read: list[str] = []
        if operators is not None:
            known = {STARTS, SLOTS, COMMITTED, *self._states}
            self.read = [name for value in operators.get_inputs() if (name := value.name) not in known]
        # By their slots, the rows of the last pass that have drafted tokens.
        self._waiting: dict[int, _Drafted] = {}

    def clear(self, row: int) -> None:
        """Set the states of a row to those before a sequence's first token."""
        self._waiting.pop(row, None)
        for array in self.arrays:
            array[row] = 0

    def save(self, row: int) -> Saved:
        """Return copies of a row's states."""
        self._waiting.pop(row, None)
        return [array[row].copy() for array in self.arrays]

    def load(self, row: int, saved: Saved) -> None:
        """Set the states of a row to copies that `save` has returned."""
        self._waiting.pop(row, None)
        for array, values in zip(self.arrays, saved, strict=True):
            array[row] = values

    def copy(self, source: int, target: int) -> None:
        """Copy the states of one row to another."""
        self._waiting.pop(target, None)
        for array in self.arrays:
            array[target] = array[source]

    def set_audio(self, row: int, audio: Sequence[NDArray[Any]]) -> None:
        """Set the encoded audio of a row: the keys and values [1, heads, frames, head_size] of all layers."""
        for array, values in zip(self._audio.values(), audio, strict=True):
            array[row] = values[0]

    def passed(self, layout: Layout, values: Mapping[str, Any]) -> None:
        """Store intermediate outputs of a pass with drafts until `accept` needs them.

        `values` are the outputs whose names are in the attribute `read`, as OrtValues.
        """
        for row, span in zip(layout.rows, layout.tokens, strict=True):
            if row.num_drafted:
                self._waiting[row.slot] = _Drafted(span.stop - row.num_drafted, values)

    def accept(self, row: int, num_tokens: int) -> None:
        """Advance the states of a row by the first `num_tokens` tokens of its draft. Does nothing without a draft."""
        drafted = self._waiting.pop(row, None)
        if drafted is None or not num_tokens:
            return
        binding = self._operators.io_binding()
        for name, value in drafted.values.items():
            channels, size = value.shape()[-1], np.dtype(np.float32).itemsize
            start = value.data_ptr() + drafted.first * channels * size
            binding.bind_input(name, "cpu", 0, np.float32, (1, num_tokens, channels), start)
        inputs = {STARTS: [0, num_tokens], SLOTS: [row], COMMITTED: [num_tokens]}
        arrays = {name: np.array(numbers, np.int32) for name, numbers in inputs.items()}  # a binding owns nothing
        for name, array in (self._states | arrays).items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for value in self._operators.get_outputs():
            binding.bind_output(value.name, "cpu")
        self._operators.run_with_iobinding(binding)

    def accept_nothing(self) -> None:
        """Discard the drafts of all rows. The states stay as they were before the drafts."""
        self._waiting.clear()

    def bind(self, binding: Any) -> None:
        """Bind the states and the encoded audio of all rows as inputs in an IO binding of ONNX Runtime."""
        for name, array in (self._states | self._audio).items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
