"""The server of ik_llama.cpp, a fork of llama.cpp with other matrix kernels for CPUs."""

from __future__ import annotations

from pathlib import Path

from . import llama_cpp
from .environment import Environment, PeerUnavailable
from .peer import Launch, Model

REPOSITORY = "github.com/ikawrakow/ik_llama.cpp"


def prepare(folder: Path, model: Model) -> Launch:
    """Build a checkout, which must be in the folder, since no package has its sources.

    It reads the file that llama.cpp's tools make, and rearranges the matrices for its kernels when it loads them.
    """
    sources = folder / "source"
    if not (sources / "CMakeLists.txt").exists():
        raise PeerUnavailable(f"a checkout of {REPOSITORY} must be in {sources}")
    environment = Environment(folder)
    environment.install(["cmake", "ninja"])
    # Its server is one of the examples.
    server, _ = llama_cpp.build(environment, sources, "-DLLAMA_BUILD_EXAMPLES=ON")
    weights = llama_cpp.quantized(folder.parent / "llama.cpp", model)
    options = [*llama_cpp.serving(weights), "--run-time-repack"]
    return Launch(
        command=lambda port: [str(server), "--port", str(port), *options],
        version=f"ik_llama.cpp {llama_cpp.version(server)}",
        weights="Q4_0",
    )
