"""Measure transcriptions: genai-server, faster-whisper (CTranslate2, int8) and whisper.cpp (Q8_0), in turn in one run.

All have one model of the shape of Whisper with random weights, which recites a text of 112 tokens in each window, and
two threads. Recordings are different parts of the speech in tests/recordings. The other two are called in processes of
their own, in environments below the work folder that are made on first use. whisper.cpp takes one recording after the
other, and searches for no speech. Linux only.

With --text-model it measures instead how much a transcription slows a stream of another model on the same server.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
from _load.server import HOST, run_server
from _models.environment import REPOSITORY, prepare, python
from _models.table import table
from _peers.environment import Environment, PeerUnavailable
from _peers.line_program import line_program
from _peers.peer import THREADS

PROGRAMS = Path(__file__).parent
SPEECH = REPOSITORY / "tests" / "recordings" / "book.wav"
TOOLS = ["faster-whisper==1.2.1", "transformers==5.24.0", "torch==2.13.0"]
CPP_TOOLS = ["pywhispercpp==1.5.1"]
OURS = "genai-server"
RATE = 16_000
SECONDS_TO_LOAD = 300
# Tokens of a stream.
TOKENS = 200
# Transcribes files at once; returns the seconds.
Transcribe = Callable[[list[Path]], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "genai-peers", metavar="DIR")
    parser.add_argument("--shape", default="whisper-base", choices=("whisper-base", "whisper-small"))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8], help="recordings at once (default 1 4 8)")
    parser.add_argument("--seconds", type=int, default=60, help="length of a recording (default 60)")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--alone", action="store_true", help="without the other two")
    parser.add_argument("--build-only", action="store_true", help="measure nothing, but make what is needed")
    parser.add_argument("--text-model", type=Path, metavar="DIR", help="measure its streams next to transcriptions")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder, ExitStack() as stack:
        model, source = _models(arguments.work, arguments.shape)
        if arguments.text_model is not None:
            rows = gaps(arguments, Path(folder), model)
            print(table(rows, markdown=arguments.markdown))
            return
        found = {OURS: stack.enter_context(_ours(Path(folder), model))}
        for name, peer in PEERS.items() if not arguments.alone else ():
            try:
                found[name] = stack.enter_context(peer(arguments.work, Path(folder), source))
            except (PeerUnavailable, subprocess.CalledProcessError) as error:
                print(f"{name}: {error}", file=sys.stderr)
        recordings = _recordings(Path(folder), arguments.seconds)
        for transcribe in found.values():
            transcribe([next(recordings)])
        if arguments.build_only:
            return
        rows = [["clients", "what", "times real time, median", "least to most", "genai-server's rate to this"]]
        for clients in arguments.clients:
            rounds = []
            for _ in range(arguments.rounds):
                files = [next(recordings) for _ in range(clients)]
                rounds.append({name: transcribe(files) for name, transcribe in found.items()})
            rows += report(rounds, clients, clients * arguments.seconds)
    print(table(rows, markdown=arguments.markdown))


def report(rounds: list[dict[str, float]], clients: int, seconds: float) -> list[list[str]]:
    """A row for each program: seconds of speech in a second, and our share of it in the same round."""
    rows = []
    for name in rounds[0]:
        rates = [seconds / found[name] for found in rounds]
        ratio = statistics.median(found[name] / found[OURS] for found in rounds)
        spread = f"{min(rates):.1f} to {max(rates):.1f}"
        rows.append([str(clients), name, f"{statistics.median(rates):.1f}", spread, f"{ratio:.2f}"])
    return rows


def gaps(arguments: argparse.Namespace, folder: Path, model: Path) -> list[list[str]]:
    """A row for a stream alone and one next to a transcription: 95 of 100 times between two tokens are at most this."""
    recordings = _recordings(folder, arguments.seconds)
    with _served(folder, {"GENAI_MODELS": f"text={arguments.text_model},speech={model}"}) as (base, client):
        transcribe = _asking(base, client, "speech")
        transcribe([next(recordings)])
        found: dict[str, list[float]] = {"alone": [], "next to a transcription": []}
        for _ in range(arguments.rounds):
            found["alone"].append(_token_gap(base, client))
            with ThreadPoolExecutor(1) as pool:
                running = pool.submit(transcribe, [next(recordings)])
                found["next to a transcription"].append(_token_gap(base, client))
                if running.done():
                    raise SystemExit(f"--seconds={arguments.seconds}: the transcription ended before the stream")
                running.result()
    ratios = [one / other for one, other in zip(found["next to a transcription"], found["alone"], strict=True)]
    rows = [["stream", "ITL p95, median", "least to most", "to alone"]]
    for name, values in found.items():
        ratio = 1.0 if name == "alone" else statistics.median(ratios)
        spread = f"{min(values):.0f} to {max(values):.0f} ms"
        rows.append([name, f"{statistics.median(values):.0f} ms", spread, f"{ratio:.2f}"])
    return rows


def _token_gap(base: str, client: httpx.Client) -> float:
    """The 95th percentile of the times between two tokens of a stream, in ms."""
    body = {"prompt": "once upon a time", "max_tokens": TOKENS, "ignore_eos": True, "stream": True, "model": "text"}
    moments = []
    with client.stream("POST", f"{base}/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                moments.append(time.perf_counter())
    return 1000 * statistics.quantiles([after - before for before, after in pairwise(moments)], n=20)[-1]


def _models(work: Path, shape: str) -> tuple[Path, Path]:
    """The model's directory and its checkpoint, made on first use."""
    model, source = work / f"{shape}-int4", work / f"{shape}-source"
    if not (model / "generation_config.json").is_file():
        make: list[str | Path] = [sys.executable, PROGRAMS / "make_bench_model.py", model, "--shape", shape]
        make += ["--checkpoint", source]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    return model, source


def _recordings(folder: Path, seconds: int) -> Iterator[Path]:
    """Files of speech; no two are equal, so that no window is encoded twice."""
    with wave.open(str(SPEECH)) as file:
        speech = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    number = 0
    while True:
        number += 1
        path = folder / f"{number}.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(np.resize(np.roll(speech, -1009 * number), seconds * RATE).tobytes())
        yield path


@contextmanager
def _served(folder: Path, settings: dict[str, str]) -> Iterator[tuple[str, httpx.Client]]:
    """A server whose models are loaded, and a client."""
    with run_server(folder, settings | {"GENAI_THREADS": str(THREADS)}) as server, httpx.Client(timeout=600) as client:
        base, until = f"http://{HOST}:{server.port}", time.monotonic() + SECONDS_TO_LOAD
        while not server.is_idle() or any(engine["state"] != "ready" for engine in server.engines()):
            if time.monotonic() > until:
                raise SystemExit(f"genai-server has not loaded its models within {SECONDS_TO_LOAD} s")
            time.sleep(1)
        yield base, client


def _asking(base: str, client: httpx.Client, model: str) -> Transcribe:
    def ask(path: Path) -> None:
        with path.open("rb") as file:
            data = {"language": "en", "model": model}
            answer = client.post(f"{base}/v1/audio/transcriptions", files={"file": (path.name, file)}, data=data)
        answer.raise_for_status()

    def transcribe(paths: list[Path]) -> float:
        started = time.perf_counter()
        with ThreadPoolExecutor(len(paths)) as pool:
            list(pool.map(ask, paths))
        return time.perf_counter() - started

    return transcribe


@contextmanager
def _ours(folder: Path, model: Path) -> Iterator[Transcribe]:
    with _served(folder, {"GENAI_MODELS": f"speech={model}"}) as (base, client):
        yield _asking(base, client, "speech")


@contextmanager
def _faster_whisper(work: Path, folder: Path, source: Path) -> Iterator[Transcribe]:
    environment = Environment(work / "faster-whisper")
    environment.install(TOOLS)
    target = work / f"{source.name}-ct2"
    if not target.exists():
        convert: list[str | Path] = [environment.python.parent / "ct2-transformers-converter", "--model", source]
        convert += ["--output_dir", target, "--quantization", "int8", "--copy_files", "tokenizer.json"]
        environment.run(convert)
    command: list[str | Path] = [
        environment.python,
        PROGRAMS / "_peers" / "faster_whisper_loop.py",
        target,
        str(THREADS),
    ]
    with line_program(command, folder / "faster-whisper.log") as ask:
        yield lambda paths: float(ask(json.dumps([str(path) for path in paths]))["seconds"])


@contextmanager
def _whisper_cpp(work: Path, folder: Path, source: Path) -> Iterator[Transcribe]:
    environment = Environment(work / "whisper-cpp")
    environment.install(CPP_TOOLS)
    target = work / f"{source.name}-q8_0.bin"
    if not target.exists():
        prepare()
        partial = target.with_suffix(".new")
        environment.run([python(), PROGRAMS / "_peers" / "whisper_ggml.py", source, partial])
        partial.replace(target)
    command: list[str | Path] = [environment.python, PROGRAMS / "_peers" / "whisper_cpp_loop.py", target, str(THREADS)]
    with line_program(command, folder / "whisper-cpp.log") as ask:
        yield lambda paths: float(ask(json.dumps([str(path) for path in paths]))["seconds"])


PEERS = {"faster-whisper": _faster_whisper, "whisper.cpp": _whisper_cpp}


if __name__ == "__main__":
    main()
