"""Opens the ONNX Runtime session that runs a decoder's graph for the batch (`open_session`), and makes ONNX Runtime
profile a single pass of a session (`profile_pass`).

ONNX Runtime's Python package can only profile whole sessions. The C API has a function for single passes,
RunOptionsEnableProfiling, which onnxruntime-genai uses as well. The Python package contains a library with the C API,
built from the same source as its Python module, so the function is called on the C++ object inside Python's RunOptions.
Before that, a test shows whether the C API reads numbers from this object that Python has set.
"""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

from genai_server.engine.graph_description import DecoderGraph, DoesNotFit
from genai_server.engine.graph_rewriting.cpu_operators import computes_in_16_bits, use_fast_operators, widen
from genai_server.engine.graph_rewriting.cross_attention import normalize_decoder
from genai_server.engine.graph_rewriting.onnx_graph import Weights
from genai_server.engine.graph_rewriting.packed_products import DOMAIN, pack_products, why_not_packed
from genai_server.engine.graph_rewriting.ragged import make_ragged, offer_best, state_operators
from genai_server.engine.model.native_library import native_library
from genai_server.engine.model.session_options import EXTERNAL_DATA, open_with, session_options
from genai_server.errors import RunnerFailed
from genai_server.options.device import DEFAULT_OPTIONS, DeviceOptions

# The one that the batch with genai-server-native is tested with, and the first whose PagedAttention takes bounds.
_MIN_VERSION, _MIN_PAGED = (1, 32), (1, 31)
_ERRORS = 3  # ONNX Runtime's level of severity
_LIBRARIES = ("libonnxruntime.so*", "libonnxruntime.*.dylib", "onnxruntime.dll")
# The first version with the function, and indices in the table of functions, which later versions only append to.
_API_VERSION = 25
_GET_VERBOSITY, _GET_SEVERITY, _ENABLE_PROFILING = 43, 44, 415
_TRIED = 12_345, 3
# What every class of pybind11 has.
_OF_PYBIND11 = "_pybind11_conduit_v1_"
_GetApi = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
_GetNumber = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
_SetPath = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_wchar_p if os.name == "nt" else ctypes.c_char_p)


def open_session(
    graph: DecoderGraph,
    threads: int,
    *,
    offers_best: bool = False,
    options: DeviceOptions = DEFAULT_OPTIONS,
    profile_prefix: str = "",
) -> Any:
    """Open the ONNX Runtime session that runs a decoder's graph for the batch, and return it.

    The graph is rewritten so that one pass can read tokens of several sequences and, with `offers_best`, so that a pass
    can return the highest logits instead of all (engine/graph_rewriting/ragged.py). `threads` is the number of threads,
    0 for one on each physical core that the process may use, and `options` are those of the device. With a
    `profile_prefix`, ONNX Runtime profiles the whole session into files whose paths begin with it. Raises DoesNotFit if
    the graph or the installed ONNX Runtime cannot run a batch, and ConfigurationError for options that name something
    missing.
    """
    minimum = _MIN_PAGED if graph.block_tokens else _MIN_VERSION
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < minimum:
        needed = ".".join(map(str, minimum))
        raise DoesNotFit(f"a batch needs onnxruntime {needed}, and {onnxruntime.__version__} is installed")
    ort_options = session_options(options, threads, profile_prefix=profile_prefix)
    if graph.has_states and ort_options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL:
        raise DoesNotFit("its states are updated in place, which parallel execution_mode would do in any order")
    ort_options.log_severity_level = _ERRORS  # it would warn about each input for adapters, and about changed shapes
    ort_options.add_session_config_entry(EXTERNAL_DATA, str(graph.path.parent))
    model = onnx.load(str(graph.path), load_external_data=False)
    if graph.is_native:
        ort_options.register_custom_ops_library(str(native_library()))
        if (why := why_not_packed(model.graph)) is None:
            pack_products(model, graph.path.parent)
        elif computes_in_16_bits(model.graph):
            raise DoesNotFit(f"it computes in 16 bits, and {why}")
    _make_ragged(model, graph)
    if offers_best:
        offer_best(model.graph, graph.logits, None if graph.vision is None else graph.vision.image_token)
    return open_with(model.SerializeToString(), ort_options, options)


def _make_ragged(model: onnx.ModelProto, graph: DecoderGraph) -> None:
    use_fast_operators(model.graph)
    if graph.cross_states:
        normalize_decoder(model.graph, graph)
    make_ragged(model.graph, graph)
    if graph.is_native:
        model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))


def open_state_operators(graph: DecoderGraph, complete: Any) -> Any:
    """Open and return a session that has only those operators of a decoder that have recurrent states; None if the
    decoder has none. It advances the states by the accepted tokens of a draft, which a pass of the whole decoder has
    not done.

    `complete` is the session of the whole decoder. The threads of the new session do not spin, because spinning would
    take the cores from the threads of the decoder.
    """
    if not graph.has_states:
        return None
    complete_options = complete.get_session_options()
    ort_options = session_options(DEFAULT_OPTIONS, complete_options.intra_op_num_threads)
    ort_options.use_per_session_threads = complete_options.use_per_session_threads
    ort_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    ort_options.add_session_config_entry(EXTERNAL_DATA, str(graph.path.parent))
    ort_options.register_custom_ops_library(str(native_library()))
    model = onnx.load(str(graph.path), load_external_data=False)
    widen(model.graph, Weights(model.graph, graph.path.parent))
    _make_ragged(model, graph)
    return open_with(state_operators(model, graph).SerializeToString(), ort_options, DEFAULT_OPTIONS)


def profile_pass(options: onnxruntime.RunOptions, prefix: str) -> None:
    """Change run options of ONNX Runtime, in place, so that a pass with them is profiled. The profile is written to a
    file whose path begins with `prefix`.

    Raises RunnerFailed if the installed ONNX Runtime cannot profile a single pass.
    """
    path = prefix if os.name == "nt" else os.fsencode(prefix)
    # An error would be a pointer to its description.
    if _SetPath(_functions()[_ENABLE_PROFILING])(_address(options), path):
        raise RunnerFailed("onnxruntime refuses to profile a pass")


def check_pass_profiles() -> None:
    """Raise RunnerFailed if the installed ONNX Runtime cannot profile a single pass."""
    _functions()


@cache
def _functions() -> ctypes.Array[ctypes.c_size_t]:
    """Return the addresses of the functions of ONNX Runtime's C API, as a table in the order of the C API.

    Raises RunnerFailed if the library with the C API is missing, or cannot use the objects of the Python package.
    """
    folder = Path(onnxruntime.__file__).parent / "capi"
    libraries = [path for name in _LIBRARIES for path in sorted(folder.glob(name))]
    if not hasattr(onnxruntime.RunOptions, _OF_PYBIND11):
        raise RunnerFailed(f"the run options of onnxruntime {onnxruntime.__version__} are no object of pybind11")
    if not libraries:
        raise RunnerFailed(f"{folder} has no library with the C API of ONNX Runtime")
    try:
        get_base = ctypes.CDLL(str(libraries[0])).OrtGetApiBase
    except (OSError, AttributeError) as error:
        raise RunnerFailed(f"{libraries[0]} cannot be used: {error}") from None
    get_base.restype = ctypes.POINTER(_GetApi)
    table = get_base()[0](_API_VERSION)
    if not table:
        raise RunnerFailed(f"onnxruntime {onnxruntime.__version__} has no version {_API_VERSION} of the C API")
    functions = (ctypes.c_size_t * (_ENABLE_PROFILING + 1)).from_address(table)
    options, number = onnxruntime.RunOptions(), ctypes.c_int()
    options.log_verbosity_level, options.log_severity_level = _TRIED
    for index, expected in zip((_GET_VERBOSITY, _GET_SEVERITY), _TRIED, strict=True):
        if _GetNumber(functions[index])(_address(options), ctypes.byref(number)) or number.value != expected:
            raise RunnerFailed(f"the C API of onnxruntime {onnxruntime.__version__} cannot read Python's run options")
    return functions


def _address(options: onnxruntime.RunOptions) -> int:
    """Return the address of the C++ object inside Python's RunOptions object `options`. It is the first value that
    pybind11 stores in the Python object.
    """
    return ctypes.c_size_t.from_address(id(options) + object.__basicsize__).value
