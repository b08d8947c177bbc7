"""Operators for ONNX Runtime on CPUs (native/README.md), in a library that `SessionOptions.register_custom_ops_library`
loads.
"""

import ctypes
import sys
from pathlib import Path

_NAMES = {"win32": "genai_native.dll", "darwin": "libgenai_native.dylib"}
# The domain of the operators in a graph.
DOMAIN = "genai_server.native"


def library() -> Path:
    """Return the path of the library."""
    return Path(__file__).parent / _NAMES.get(sys.platform, "libgenai_native.so")


def instruction_sets() -> list[str]:
    """Return the names of those instruction sets for which the library has kernels and which this processor supports,
    the fastest first.
    """
    loaded = ctypes.CDLL(str(library()))
    loaded.genai_native_instruction_sets.restype = ctypes.c_char_p
    found: bytes = loaded.genai_native_instruction_sets()
    return found.decode().split()


def use(instruction_set: str) -> None:
    """Use the kernels for this instruction set in the whole process from now on. By default the fastest kernels are
    used.

    Raises ValueError if the processor does not support the instruction set.
    """
    if not ctypes.CDLL(str(library())).genai_native_use(instruction_set.encode()):
        raise ValueError(f"this processor runs {', '.join(instruction_sets())}, not {instruction_set}")
