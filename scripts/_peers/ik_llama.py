"""The server of ik_llama.cpp, a fork of llama.cpp with other matrix kernels for CPUs.

It is built from the sources that come with `ik-llama-cpp-python`.
"""

from __future__ import annotations

from pathlib import Path

from . import llama_cpp
from .environment import Environment
from .peer import Launch, Model
from .perplexity import by_tool

_PACKAGE = "ik-llama-cpp-python==0.1.5"
# The package lacks this file, which the build runs to tell the version.
_BUILD_INFO = Path("common", "cmake", "build-info-gen-cpp.cmake")
_MAKE_BUILD_INFO = """set(BUILD_NUMBER 0)
set(BUILD_COMMIT unknown)
set(BUILD_COMPILER unknown)
set(BUILD_TARGET unknown)
configure_file(common/build-info.cpp.in ${CMAKE_SOURCE_DIR}/common/build-info.cpp)
"""
# Its server is one of the examples. Keys and values have 16 bits, so attention over quantized ones is left out: that
# compiles for longer than all the rest.
_OPTIONS = ("-DLLAMA_BUILD_EXAMPLES=ON", "-DGGML_IQK_FA_ALL_QUANTS=OFF")


def prepare(folder: Path, model: Model) -> Launch:
    """Build the server. It reads the file that llama.cpp's tools make.

    It aborts with flash attention, and if it rearranges the matrices for other kernels (--run-time-repack).
    """
    environment = Environment(folder)
    environment.install(["cmake", "ninja"])
    sources = llama_cpp.sources_of(environment, _PACKAGE) / "vendor" / "ik_llama.cpp"
    if not (missing := sources / _BUILD_INFO).exists():
        missing.parent.mkdir(exist_ok=True)
        missing.write_text(_MAKE_BUILD_INFO, encoding="utf-8")
    server, _ = llama_cpp.build(environment, sources, *_OPTIONS)
    weights = llama_cpp.quantized(folder.parent / "llama.cpp", model)
    options = [*llama_cpp.serving(weights), "--flash-attn", "off"]
    return Launch(
        command=lambda port: [str(server), "--port", str(port), *options],
        version=f"ik_llama.cpp {llama_cpp.version(server)} ({_PACKAGE})",
        weights=model.gguf.stem if model.gguf is not None else "Q4_0",
        perplexity=lambda url: by_tool(server.with_name("llama-perplexity"), weights),
    )
