"""The ONNX Runtime session of a decoder in the batch, with inputs and outputs bound to the KV cache slots.

The graph was rewritten by engine/graph_rewriting/ragged.py, so that one pass reads tokens of several sequences.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from genai_server.engine.graph_description import DecoderGraph
from genai_server.engine.graph_rewriting.ragged import BEST_LOGITS, BEST_TOKENS, SCALES, SHARES
from genai_server.engine.kv_cache.buffers import BatchBuffers, RowStates
from genai_server.engine.kv_cache.layout import Layout
from genai_server.engine.kv_cache.paged_buffers import PagedBuffers
from genai_server.engine.model.encoders import TokenEmbedder
from genai_server.engine.model.session import profile_pass
from genai_server.engine.runners.adapters import AdapterStack
from genai_server.engine.runners.base import INTERRUPTED_MESSAGE, Interrupted
from genai_server.engine.scores import NUM_BEST, Best, Logits, Scores
from genai_server.errors import RunnerFailed


class PassBinding:
    """An IO binding of ONNX Runtime that remembers what is bound, so that nothing is bound twice."""

    def __init__(self, binding: Any) -> None:
        self.io = binding
        self._inputs: dict[str, NDArray[Any]] = {}
        # Address and shape of each output.
        self._outputs: dict[str, tuple[int, tuple[int, ...]]] = {}
        # The layout whose arrays are bound, and the outputs of its pass; None if a pass needs other arrays, too.
        self.bound: tuple[Layout, Mapping[str, NDArray[Any]]] | None = None

    def give(self, name: str, values: NDArray[Any]) -> None:
        """Bind an array in CPU memory as the input `name`. If this array is bound already, the next pass reads its
        current values.
        """
        if self._inputs.get(name) is not values:
            self.io.bind_cpu_input(name, values)
            self._inputs[name] = values

    def write_to(self, name: str, array: NDArray[Any]) -> None:
        """Let a pass write the output `name` to an array in CPU memory, which must exist as long as it is bound."""
        place = array.ctypes.data, array.shape
        if self._outputs.get(name) != place:
            self.io.bind_output(name, "cpu", 0, array.dtype, array.shape, place[0])
            self._outputs[name] = place

    def keep(self, name: str, buffers: BatchBuffers) -> None:
        """Let ONNX Runtime allocate the output `name` in each pass, in the memory where it is computed."""
        buffers.keep(self.io, name)
        self._outputs.pop(name, None)


class _LastPass(NamedTuple):
    """What a pass has in common with the next one if that one has the same layout, which was advanced in place."""

    layout: Layout
    # The outputs by name, and the scores of each row in these.
    wanted: Mapping[str, NDArray[Any]]
    scores: list[Scores]


class DecoderSession:
    """Runs forward passes of a decoder's session. The runner that has the session allocates its buffers.

    The session has one IO binding for passes with drafts and another one for passes without, because binding the KV
    cache of every layer anew in each pass would take 0.7 ms.
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
        # Of passes that are never interrupted. Without entries they have none: with options, ONNX Runtime's Python part
        # raises and catches an error in each pass.
        self._options = self.new_options() if run_entries else None
        self.offers_best = BEST_LOGITS in {value.name for value in session.get_outputs()}
        self._graph = graph
        self._inputs = {value.name for value in session.get_inputs()}
        self._outputs = {graph.logits, *((BEST_LOGITS, BEST_TOKENS, SHARES) if self.offers_best else ())}
        if graph.hidden_output:
            self._outputs.add(graph.hidden_output)
        self.release()

    def release(self) -> None:
        """Drop the references to all buffers. No pass can run until `use` is called."""
        vars(self).pop("_buffers", None)
        vars(self).pop("_states", None)
        # By whether there are drafts.
        self._bindings: dict[bool, PassBinding] = {}
        self._bound_version = -1

    def use(self, buffers: BatchBuffers, states: RowStates, logits: NDArray[Any]) -> None:
        """Use these KV cache buffers and recurrent states for passes. Earlier ones must have been released.

        A pass writes its logits to `logits` [positions, vocab_size], or to a new array if it has more positions.
        """
        self._buffers, self._states, self._step_logits = buffers, states, logits
        self._last: _LastPass | None = None

    def new_options(self, profile_prefix: str = "") -> Any:
        """Return new run options of ONNX Runtime. With a `profile_prefix`, a pass with these options is profiled into a
        file whose path begins with it.
        """
        options = onnxruntime.RunOptions()
        for name, value in self._run_entries.items():
            options.add_run_config_entry(name, value)
        if profile_prefix:
            profile_pass(options, profile_prefix)
        return options

    def scores(self, layout: Layout, options: Any = None, *, with_hidden: bool = False) -> list[Scores]:
        """Run a pass. Returns the scores of each row, whose logits the next pass overwrites.

        On a device with memory of its own, only the highest logits are copied to the host at first, and all logits when
        they are needed. With `with_hidden`, the hidden states of all tokens, [1, tokens, hidden_size], are stored in
        the attribute `hidden`. `options` are the run options; None stands for the usual ones. Raises Interrupted and
        RunnerFailed.
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
            left = self.run(layout, {BEST_LOGITS: best, BEST_TOKENS: tokens, SHARES: shares, **wanted}, options)
            scales = layout.inputs[SCALES][:, 0]
            every = range(layout.num_logits)
            found = Best(best[0], tokens[0], shares[0, :, 0], scales, every, partial(self._read, left))
            return [Scores(best=found.at(positions)) for positions in layout.logits]
        logits = self._logits(layout.num_logits)
        wanted[self._graph.logits] = logits[np.newaxis]
        self.run(layout, wanted, options)
        given = self._without_images(logits.astype(np.float32, copy=False))
        scores = [Scores(given[positions]) for positions in layout.logits]
        is_steady = self._embedder is None and given is logits and not with_hidden
        self._last = _LastPass(layout, wanted, scores) if is_steady else None
        return scores

    def _read(self, left: Any, positions: range) -> Logits:
        """Copy the logits [positions, vocab_size] at the given positions of a pass from the device.

        `left` is the OrtValue with the logits of the pass in the device's memory.
        """
        assert isinstance(self._buffers, PagedBuffers)  # else the session does not offer the best
        return self._without_images(self._buffers.read(left, positions))

    def _without_images(self, logits: Logits) -> Logits:
        """Set the logit of the token that stands for image features to minus infinity, in place, so that it is never
        chosen. Returns the logits.
        """
        if self._embedder is not None:
            logits[:, self._embedder.image_token] = -np.inf
        return logits

    def _logits(self, num_logits: int) -> NDArray[Any]:
        """Return the array [positions, vocab_size] to which a pass writes its logits."""
        logits = self._step_logits[:num_logits]
        if len(logits) < num_logits:
            logits = np.empty((num_logits, self._step_logits.shape[1]), self._graph.logits_type)
        return logits

    def run(self, layout: Layout, wanted: Mapping[str, NDArray[Any]], options: Any = None) -> Any:
        """Run a pass. `wanted` maps the names of outputs to the arrays into which they are written.

        Returns the logits as an OrtValue if they are in a device's memory, otherwise None. Raises Interrupted and
        RunnerFailed.
        """
        binding = self.bind(layout, wanted)
        try:
            self.session.run_with_iobinding(binding.io, self._options if options is None else options)
        except RuntimeError as error:
            if INTERRUPTED_MESSAGE in str(error):
                raise Interrupted from None
            raise RunnerFailed(f"onnxruntime: {error}") from error
        else:
            if self._keeps_read(layout):
                self._states.passed(layout, self._read_of_states(binding))
            return binding.io.get_outputs_as_ortvaluevector()[0] if self.offers_best else None
        finally:
            self._keep_unread(binding, wanted)

    def bind(self, layout: Layout, wanted: Mapping[str, NDArray[Any]]) -> PassBinding:
        """Return a binding with all inputs and outputs of a pass.

        `wanted` maps the names of outputs to the arrays into which the pass writes them.
        """
        binding = self._binding(keeps_read=self._keeps_read(layout))
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
        self._keep_unread(binding, wanted)
        has_own = (
            self._embedder is None and positions is layout.positions and not isinstance(self._buffers, PagedBuffers)
        )
        binding.bound = (layout, wanted) if has_own else None
        return binding

    def _keeps_read(self, layout: Layout) -> bool:
        """Whether a pass must also return the inputs of operators with recurrent states, from which the states are
        computed when a part of a draft is accepted.
        """
        return bool(self._states.read) and layout.has_drafts

    def _read_of_states(self, binding: PassBinding) -> dict[str, Any]:
        """Return the inputs of operators with recurrent states, by name as OrtValues, from the binding of a finished
        pass.
        """
        values = binding.io.get_outputs_as_ortvaluevector()
        found = {name: values[number] for number, name in enumerate(self._states.read)}
        for name in found:
            binding.keep(name, self._buffers)
        return found

    def _positions(self, layout: Layout) -> NDArray[np.int64]:
        axes = self._graph.position_axes
        return np.broadcast_to(layout.positions, (axes, *layout.ids.shape)).copy() if axes else layout.positions

    def _keep_unread(self, binding: PassBinding, wanted: Mapping[str, NDArray[Any]]) -> None:
        """Let ONNX Runtime allocate those outputs that are not in `wanted`, in the memory where they are computed.

        This is called before a pass and again after it, because a binding otherwise references its outputs as long as
        it exists.
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
