"""The server of ik_llama.cpp, a fork of llama.cpp with other matrix kernels for CPUs.

It is built from the sources that come with `ik-llama-cpp-python`.
"""

from __future__ import annotations

from pathlib import Path

from . import llama_cpp
from .environment import Environment
from .peer import Launch, Model

_PACKAGE = "ik-llama-cpp-python==0.1.5"
# Its server is one of the examples. Keys and values have 16 bits, so attention over quantized ones is left out: that
# compiles for longer than all the rest.
_OPTIONS = ("-DLLAMA_BUILD_EXAMPLES=ON", "-DGGML_IQK_FA_ALL_QUANTS=OFF")


def prepare(folder: Path, model: Model) -> Launch:
    """Build the server. It reads the file that llama.cpp's tools make.

    It rearranges the matrices for its kernels when it loads them.
    """
    environment = Environment(folder)
    environment.install(["cmake", "ninja"])
    sources = llama_cpp.sources_of(environment, _PACKAGE) / "vendor" / "ik_llama.cpp"
    server, _ = llama_cpp.build(environment, sources, *_OPTIONS)
    weights = llama_cpp.quantized(folder.parent / "llama.cpp", model)
    options = [*llama_cpp.serving(weights), "--run-time-repack"]
    return Launch(
        command=lambda port: [str(server), "--port", str(port), *options],
        version=f"ik_llama.cpp {llama_cpp.version(server)} ({_PACKAGE})",
        weights="Q4_0",
    )
