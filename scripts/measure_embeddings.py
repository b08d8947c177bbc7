"""Measure embeddings: genai-server, sentence-transformers on ONNX Runtime and llama.cpp's server, in turn in one run.

All have one model of the shape of all-MiniLM-L6 with random weights in fp32, two threads each, and texts of 128 tokens.
Concurrent clients send requests to the servers over HTTP; sentence-transformers is called in its own process. Other
servers are built below the work folder, from PyPI, on first use. Linux only.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from _load.server import HOST, clean_environment, free_port, run_server, running
from _models.environment import prepare, python
from _models.table import table
from _peers import llama_cpp
from _peers.environment import Environment, PeerUnavailable
from _peers.line_program import line_program
from _peers.peer import THREADS

PROGRAMS = Path(__file__).parent
TOKENS, AROUND = 128, 2
TOOLS = ["sentence-transformers==5.1.2", "optimum-onnx[onnxruntime]==0.1.0", "torch==2.13.0"]
OURS = "genai-server"
# Encodes all texts once; returns the seconds and the first vector.
Encode = Callable[[], tuple[float, list[float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "genai-peers", metavar="DIR")
    parser.add_argument("--texts", type=int, default=256, help="texts of a round (default 256)")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--clients", type=int, default=4, help="requests at once to the servers (default 4)")
    parser.add_argument("--each", type=int, default=32, help="texts of a request (default 32)")
    parser.add_argument("--python", type=Path, help="Python with PyTorch, to build the model")
    parser.add_argument("--quick", action="store_true", help="one round of few texts")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.texts, arguments.rounds = 2 * arguments.each, 1
    if arguments.python is None:
        prepare()
    arguments.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder, ExitStack() as stack:
        source = Path(folder) / "source"
        builder = arguments.python or python()
        subprocess.run([builder, PROGRAMS / "_models" / "pooled_bench.py", source], check=True)
        texts = _texts(arguments.texts)
        encoders = start(arguments, Path(folder), source, builder, texts, stack)
        rounds = [{name: encode() for name, encode in encoders.items()} for _ in range(arguments.rounds + 1)][1:]
    num_tokens = arguments.texts * TOKENS
    print(table(report(rounds, num_tokens), markdown=arguments.markdown))


def start(
    arguments: argparse.Namespace, folder: Path, source: Path, builder: Path, texts: list[str], stack: ExitStack
) -> dict[str, Encode]:
    """All servers, running; those that cannot be built are omitted, with the reason."""
    encoders: dict[str, Encode] = {}
    begins: dict[str, Callable[[], AbstractContextManager[str | Encode]]] = {
        OURS: lambda: _ours(folder, source, builder),
        "sentence-transformers": lambda: _sentence_transformers(arguments.work, folder, source, texts),
        "llama.cpp": lambda: _llama_cpp(arguments.work, folder, source),
    }
    for name, begin in begins.items():
        try:
            started = stack.enter_context(begin())
        except (PeerUnavailable, RuntimeError, subprocess.CalledProcessError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        if isinstance(started, str):
            encoders[name] = _over_http(started, texts, arguments.clients, arguments.each)
        else:
            encoders[name] = started
    return encoders


def report(rounds: list[dict[str, tuple[float, list[float]]]], num_tokens: int) -> list[list[str]]:
    """A row for each: tokens a second, our share of it in the same round, and how far the vectors are from ours."""
    rows = [["what", "tokens/s, median", "least to most", "genai-server's rate to this", "largest difference"]]
    for name in rounds[0]:
        rates = [num_tokens / found[name][0] for found in rounds]
        ratios = [found[name][0] / found[OURS][0] for found in rounds]
        ours, other = rounds[0][OURS][1], rounds[0][name][1]
        difference = max(abs(a - b) for a, b in zip(ours, other, strict=True))
        spread = f"{min(rates):.0f} to {max(rates):.0f}"
        rows.append(
            [name, f"{statistics.median(rates):.0f}", spread, f"{statistics.median(ratios):.2f}", f"{difference:.0e}"]
        )
    return rows


@contextmanager
def _ours(folder: Path, source: Path, builder: Path) -> Iterator[str]:
    target = folder / "exported"
    command = [sys.executable, "-m", "genai_server", "export", str(source), "--to", str(target)]
    subprocess.run([*command, "--python", str(builder)], check=True, stdout=subprocess.DEVNULL)
    with run_server(folder, {"GENAI_MODEL_DIR": str(target), "GENAI_THREADS": str(THREADS)}) as server:
        yield f"http://{HOST}:{server.port}"


@contextmanager
def _llama_cpp(work: Path, folder: Path, source: Path) -> Iterator[str]:
    environment, server, _ = llama_cpp.built(work / "llama.cpp")
    weights = folder / "model.gguf"
    llama_cpp.convert(environment, source, weights, "f32", "jina-v2-en")
    port = free_port()
    url = f"http://{HOST}:{port}"
    command = [str(server), "--model", str(weights), "--port", str(port), "--threads", str(THREADS), "--no-ui"]
    command += ["--embedding", "--pooling", "mean", "--parallel", "16", "--ctx-size", "4096"]
    command += ["--batch-size", "2048", "--ubatch-size", "2048"]

    def is_up() -> bool:
        try:
            return httpx.get(f"{url}/health", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    with running(command, clean_environment(), folder / "llama.log", is_up, 60.0):
        yield url


@contextmanager
def _sentence_transformers(work: Path, folder: Path, source: Path, texts: list[str]) -> Iterator[Encode]:
    environment = Environment(work / "sentence-transformers")
    environment.install(TOOLS)
    (folder / "texts.json").write_text(json.dumps(texts))
    program = PROGRAMS / "_peers" / "sentence_transformers_loop.py"
    command: list[str | Path] = [environment.python, program, source, folder / "texts.json", str(THREADS)]
    with line_program(command, folder / "sentence-transformers.log") as ask:

        def encode() -> tuple[float, list[float]]:
            found = ask("go")
            return float(found["seconds"]), list(found["first"])

        yield encode


def _over_http(url: str, texts: list[str], clients: int, each: int) -> Encode:
    """All texts, in requests of `each`, of which `clients` are under way at once."""
    client = httpx.Client(base_url=url, timeout=300)
    parts = [texts[first : first + each] for first in range(0, len(texts), each)]

    def ask(part: list[str]) -> Any:
        answer = client.post("/v1/embeddings", json={"input": part})
        answer.raise_for_status()
        return answer.json()["data"]

    def encode() -> tuple[float, list[float]]:
        started = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            found = list(pool.map(ask, parts))
        return time.perf_counter() - started, list(found[0][0]["embedding"])

    return encode


def _texts(number: int) -> list[str]:
    chance = random.Random(0)

    def word() -> str:
        # The vocabulary has all words of four letters up to this one.
        return "a" + "".join(chance.choices(string.ascii_lowercase, k=3))

    return [" ".join(word() for _ in range(TOKENS - AROUND)) for _ in range(number)]


if __name__ == "__main__":
    main()
