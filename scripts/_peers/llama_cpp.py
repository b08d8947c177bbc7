"""llama.cpp's server, built from the sources that come with `llama-cpp-python`."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

from .environment import Environment, PeerUnavailable
from .peer import MAX_LENGTH, SLOTS, THREADS, Launch, Model, checkpoint_of, made_from
from .perplexity import by_tool

PACKAGE = "llama-cpp-python==0.3.36"
_TOOLS = ["cmake", "ninja", "torch==2.13.0", "transformers==5.5.*", "sentencepiece", "gguf"]
# No page for browsers, which the build would fetch, and no TLS. GCC 12 removes what sets the sizes of AMX's tiles as
# unused, and the server would end with an illegal instruction.
_OPTIONS = [
    "-DCMAKE_CXX_FLAGS=-fno-dse -fno-tree-dse",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
]
_PERPLEXITY = "llama-perplexity"
_CONVERT = Path(__file__).with_name("llama_convert.py")


def prepare(folder: Path, model: Model) -> Launch:
    """Build server, quantizer and the tool for perplexities; take the GGUF file, or convert the checkpoint. Then all
    matrices have 4 bits, including the output's.
    """
    _, server, _ = built(folder)
    weights = quantized(folder, model)
    options = [*serving(weights), "--no-kv-unified", "--no-ui"]
    return Launch(
        command=lambda port: [str(server), "--port", str(port), *options],
        version=f"llama.cpp {version(server)}",
        weights=model.gguf.stem if model.gguf is not None else "Q4_0",
        perplexity=lambda url: by_tool(server.with_name(_PERPLEXITY), weights),
    )


def quantized(folder: Path, model: Model) -> Path:
    """The GGUF file; without one, the checkpoint in llama.cpp's format, with 4 bits, made on first use."""
    if model.gguf is not None:
        return model.gguf
    environment, _, quantize = built(folder)
    weights = folder / f"{made_from(model)}.gguf"
    if not weights.exists():
        complete, unfinished = weights.with_suffix(".bf16"), weights.with_suffix(".part")
        convert(environment, checkpoint_of(model), complete, "bf16")
        environment.run([quantize, "--pure", complete, unfinished, "Q4_0"])
        complete.unlink()
        unfinished.rename(weights)
    return weights


def built(folder: Path) -> tuple[Environment, Path, Path]:
    """The environment, the server and the quantizer, built on first use."""
    environment = Environment(folder)
    environment.install(_TOOLS)
    return environment, *build(environment, sources_of(environment) / "vendor" / "llama.cpp")


def build(environment: Environment, sources: Path, *options: str) -> tuple[Path, Path]:
    """The server and the quantizer of these sources, built on first use in an environment that has CMake and Ninja."""
    build = environment.folder / "build"
    server, quantize = build / "bin" / "llama-server", build / "bin" / "llama-quantize"
    programs = server, quantize, server.with_name(_PERPLEXITY)
    if not all(program.exists() for program in programs):
        environment.run(["cmake", "-G", "Ninja", "-S", sources, "-B", build, *_OPTIONS, *options])
        environment.run(["ninja", "-C", build, f"-j{THREADS}", *(program.name for program in programs)])
    return server, quantize


def convert(environment: Environment, checkpoint: Path, weights: Path, precision: str, words: str = "qwen2") -> None:
    """Write a checkpoint as llama.cpp reads it; `words` names the way in which its vocabulary splits words."""
    sources = sources_of(environment) / "vendor" / "llama.cpp"
    command: list[str | Path] = [environment.python, _CONVERT, sources, sources / "gguf-py", words]
    environment.run([*command, checkpoint, "--outfile", weights, "--outtype", precision])


def sources_of(environment: Environment, package: str = PACKAGE) -> Path:
    """A package's unpacked source distribution. The environment must have pip."""
    sources = environment.folder / "source"
    if not sources.exists():
        name = package.partition("==")[0]
        download: list[str | Path] = [environment.python, "-m", "pip", "download", "--no-deps", "--no-binary", name]
        environment.run([*download, package, "--dest", environment.folder])
        (archive,) = environment.folder.glob(f"{name.replace('-', '_')}-*.tar.gz")
        unpacked = environment.folder / "unpacked"
        with tarfile.open(archive) as file:
            file.extractall(unpacked, filter="data")
        (top,) = unpacked.iterdir()
        top.rename(sources)
    return sources


def serving(weights: Path) -> list[str]:
    """Options for a slot for each client. Prompts are cached by default."""
    slots = ["--parallel", str(SLOTS), "--ctx-size", str(SLOTS * MAX_LENGTH)]
    return ["--model", str(weights), "--threads", str(THREADS), *slots]


def version(server: Path) -> str:
    """The version that a server reports. Raises PeerUnavailable if it does not start."""
    done = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
    for line in (done.stdout + done.stderr).splitlines():
        if line.startswith("version:"):
            return line.removeprefix("version:").strip()
    raise PeerUnavailable(f"{server} --version ended with status {done.returncode}")
