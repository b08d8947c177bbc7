"""Makes ONNX Runtime profile a single pass of a session. Its Python package can only profile whole sessions.

The C API has a function for this, RunOptionsEnableProfiling, which onnxruntime-genai uses as well. The Python package
contains a library with the C API, built from the same source as its Python module, so the function is called on the C++
object inside Python's RunOptions. Before, it is tested whether the C API reads numbers from this object that Python has
set.
"""

import ctypes
import os
from functools import cache
from pathlib import Path

import onnxruntime

from genai_server.errors import RunnerFailed

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


def profile_pass(options: onnxruntime.RunOptions, prefix: str) -> None:
    """Set run options so that a pass with them is profiled, into a file whose path begins with `prefix`.

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
    """Return the table of the functions of ONNX Runtime's C API.

    Raises RunnerFailed if the C API cannot use the objects of the Python package.
    """
    folder = Path(onnxruntime.__file__).parent / "capi"
    found = [path for name in _LIBRARIES for path in sorted(folder.glob(name))]
    if not hasattr(onnxruntime.RunOptions, _OF_PYBIND11):
        raise RunnerFailed(f"the run options of onnxruntime {onnxruntime.__version__} are no object of pybind11")
    if not found:
        raise RunnerFailed(f"{folder} has no library with the C API of ONNX Runtime")
    try:
        get_base = ctypes.CDLL(str(found[0])).OrtGetApiBase
    except (OSError, AttributeError) as error:
        raise RunnerFailed(f"{found[0]} cannot be used: {error}") from None
    get_base.restype = ctypes.POINTER(_GetApi)
    table = get_base()[0](_API_VERSION)
    if not table:
        raise RunnerFailed(f"onnxruntime {onnxruntime.__version__} has no version {_API_VERSION} of the C API")
    functions = (ctypes.c_size_t * (_ENABLE_PROFILING + 1)).from_address(table)
    options, seen = onnxruntime.RunOptions(), ctypes.c_int()
    options.log_verbosity_level, options.log_severity_level = _TRIED
    for index, expected in zip((_GET_VERBOSITY, _GET_SEVERITY), _TRIED, strict=True):
        if _GetNumber(functions[index])(_address(options), ctypes.byref(seen)) or seen.value != expected:
            raise RunnerFailed(f"the C API of onnxruntime {onnxruntime.__version__} cannot read Python's run options")
    return functions


def _address(options: onnxruntime.RunOptions) -> int:
    """Return the address of the C++ object of some run options, which is the first value that pybind11 stores in the
    Python object.
    """
    return ctypes.c_size_t.from_address(id(options) + object.__basicsize__).value
