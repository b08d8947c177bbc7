"""Opens the ONNX Runtime session that runs a decoder's graph for the batch."""

from typing import Any

import onnx
import onnxruntime

from genai_server.engine.graph_description import DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.cpu_operators import computes_in_half, use_fast_operators, widen
from genai_server.engine.graph_rewriting.cross_attention import use_known_operators
from genai_server.engine.graph_rewriting.onnx_graph import Weights
from genai_server.engine.graph_rewriting.packed_products import DOMAIN, pack_products, why_not_packed
from genai_server.engine.graph_rewriting.ragged import make_ragged, offer_best, state_operators
from genai_server.engine.model.native_library import native_library
from genai_server.engine.model.session_options import EXTERNAL_DATA, open_with, session_options
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions

# The one that the batch with genai-server-native is tested with, and the first whose PagedAttention takes bounds.
_MIN_VERSION, _MIN_PAGED = (1, 32), (1, 31)
_ERRORS = 3  # ONNX Runtime's level of severity


def open_session(
    graph: DecoderGraph,
    threads: int,
    *,
    offers_best: bool = False,
    options: DeviceOptions = DEFAULT_OPTIONS,
    profile_prefix: str = "",
) -> Any:
    """Open an ONNX Runtime session for a decoder, with the options of its device.

    The graph is rewritten so that one pass can read tokens of several sequences (engine/graph_rewriting/ragged.py) and,
    with `offers_best`, so that a pass can return the highest logits instead of all
    (engine/graph_rewriting/ragged.py). `threads` is the number of threads, 0 for one on each physical core that
    the process may use. With a `profile_prefix`, ONNX Runtime profiles the whole session into files whose paths begin
    with it. Raises DoesNotFit if the session cannot run a batch, and ConfigurationError for options that name something
    missing.
    """
    minimum = _MIN_PAGED if graph.block_tokens else _MIN_VERSION
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < minimum:
        needed = ".".join(map(str, minimum))
        raise DoesNotFit(f"a batch needs onnxruntime {needed}, and {onnxruntime.__version__} is installed")
    found = session_options(options, threads, profile_prefix=profile_prefix)
    if graph.has_states and found.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL:
        raise DoesNotFit("its states are updated in place, which parallel execution_mode would do in any order")
    found.log_severity_level = _ERRORS  # it would warn about each input for adapters, and about changed shapes
    found.add_session_config_entry(EXTERNAL_DATA, str(graph.path.parent))
    model = onnx.load(str(graph.path), load_external_data=False)
    if graph.is_native:
        found.register_custom_ops_library(str(native_library()))
        if (why := why_not_packed(model.graph)) is None:
            pack_products(model, graph.path.parent)
        elif computes_in_half(model.graph):
            raise DoesNotFit(f"it computes in 16 bits, and {why}")
    _make_ragged(model, graph)
    if offers_best:
        offer_best(model.graph, graph.logits, None if graph.vision is None else graph.vision.image_token)
    return open_with(model.SerializeToString(), found, options)


def _make_ragged(model: onnx.ModelProto, graph: DecoderGraph) -> None:
    use_fast_operators(model.graph)
    if graph.cross_states:
        use_known_operators(model.graph, graph)
    make_ragged(model.graph, graph)
    if graph.is_native:
        model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))


def open_state_operators(graph: DecoderGraph, complete: Any) -> Any:
    """Open a session that has only a decoder's operators with recurrent states; None if the decoder has none. It brings
    the states up to date after a part of a draft was accepted.

    `complete` is the session of the whole decoder. The threads of the new session do not spin, because spinning would
    take the cores from the threads of the decoder.
    """
    if not graph.has_states:
        return None
    given = complete.get_session_options()
    found = session_options(DEFAULT_OPTIONS, given.intra_op_num_threads)
    found.use_per_session_threads = given.use_per_session_threads
    found.add_session_config_entry("session.intra_op.allow_spinning", "0")
    found.add_session_config_entry(EXTERNAL_DATA, str(graph.path.parent))
    found.register_custom_ops_library(str(native_library()))
    model = onnx.load(str(graph.path), load_external_data=False)
    widen(model.graph, Weights(model.graph, graph.path.parent))
    _make_ragged(model, graph)
    return open_with(state_operators(model, graph).SerializeToString(), found, DEFAULT_OPTIONS)
