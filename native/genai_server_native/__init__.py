"""Operators for ONNX Runtime on CPUs (README.md), as a library for `SessionOptions.register_custom_ops_library`."""

import ctypes
import sys
from pathlib import Path

_NAMES = {"win32": "genai_native.dll", "darwin": "libgenai_native.dylib"}
# The domain of the operators in a graph.
DOMAIN = "genai_server.native"


def library() -> Path:
    """The library's file."""
    return Path(__file__).parent / _NAMES.get(sys.platform, "libgenai_native.so")


def instruction_sets() -> list[str]:
    """Those that this processor can run, the fastest first."""
    loaded = ctypes.CDLL(str(library()))
    loaded.genai_native_instruction_sets.restype = ctypes.c_char_p
    found: bytes = loaded.genai_native_instruction_sets()
    return found.decode().split()


def use(instruction_set: str) -> None:
    """Use the kernels of an instruction set in this process from now on; by default these are the fastest.

    Raises ValueError if this processor cannot run them.
    """
    if not ctypes.CDLL(str(library())).genai_native_use(instruction_set.encode()):
        raise ValueError(f"this processor runs {', '.join(instruction_sets())}, not {instruction_set}")
