"""Measure transcriptions: genai-server and faster-whisper (CTranslate2 in int8), in turn in one run.

Both have one model of the shape of Whisper with random weights, which recites a text of 112 tokens in each window, and
two threads. Recordings are different parts of the speech in tests/recordings. faster-whisper is called in a process of
its own, in an environment below the work folder that is made on first use. Linux only.
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
from pathlib import Path

import httpx
import numpy as np
from _load.server import HOST, clean_environment, run_server
from _models.environment import REPOSITORY
from _models.table import table
from _peers.environment import Environment, PeerUnavailable
from _peers.peer import THREADS

PROGRAMS = Path(__file__).parent
SPEECH = REPOSITORY / "tests" / "recordings" / "book.wav"
TOOLS = ["faster-whisper==1.2.1", "transformers==5.24.0", "torch==2.13.0"]
OURS = "genai-server"
RATE = 16_000
SECONDS_TO_LOAD = 300
# Transcribes files at once; returns the seconds.
Transcribe = Callable[[list[Path]], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "genai-peers", metavar="DIR")
    parser.add_argument("--shape", default="whisper-base", choices=("whisper-base", "whisper-small"))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8], help="recordings at once (default 1 4 8)")
    parser.add_argument("--seconds", type=int, default=60, help="length of a recording (default 60)")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--alone", action="store_true", help="without faster-whisper")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder, ExitStack() as stack:
        model, source = _models(arguments.work, arguments.shape)
        found = {OURS: stack.enter_context(_ours(Path(folder), model))}
        if not arguments.alone:
            try:
                found["faster-whisper"] = stack.enter_context(_faster_whisper(arguments.work, Path(folder), source))
            except (PeerUnavailable, subprocess.CalledProcessError) as error:
                print(f"faster-whisper: {error}", file=sys.stderr)
        recordings = _recordings(Path(folder), arguments.seconds)
        for transcribe in found.values():
            transcribe([next(recordings)])
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
def _ours(folder: Path, model: Path) -> Iterator[Transcribe]:
    settings = {"GENAI_MODEL_DIR": str(model), "GENAI_THREADS": str(THREADS)}
    with run_server(folder, settings) as server, httpx.Client(timeout=600) as client:
        base = f"http://{HOST}:{server.port}"
        url = f"{base}/v1/audio/transcriptions"
        until = time.monotonic() + SECONDS_TO_LOAD
        while client.get(f"{base}/readyz").status_code != 200:
            if time.monotonic() > until:
                raise SystemExit(f"genai-server has not loaded {model} within {SECONDS_TO_LOAD} s")
            time.sleep(1)

        def ask(path: Path) -> None:
            with path.open("rb") as file:
                answer = client.post(url, files={"file": (path.name, file)}, data={"language": "en"})
            answer.raise_for_status()

        def transcribe(paths: list[Path]) -> float:
            started = time.perf_counter()
            with ThreadPoolExecutor(len(paths)) as pool:
                list(pool.map(ask, paths))
            return time.perf_counter() - started

        yield transcribe


@contextmanager
def _faster_whisper(work: Path, folder: Path, source: Path) -> Iterator[Transcribe]:
    environment = Environment(work / "faster-whisper")
    environment.install(TOOLS)
    target = work / f"{source.name}-ct2"
    if not target.exists():
        convert: list[str | Path] = [environment.python.parent / "ct2-transformers-converter", "--model", source]
        convert += ["--output_dir", target, "--quantization", "int8", "--copy_files", "tokenizer.json"]
        environment.run(convert)
    with (
        (folder / "faster-whisper.log").open("wb") as log,
        subprocess.Popen(
            [environment.python, PROGRAMS / "_peers" / "faster_whisper_loop.py", target, str(THREADS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=clean_environment() | {"HF_HUB_OFFLINE": "1"},
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise PeerUnavailable((folder / "faster-whisper.log").read_text()[-300:])

        def transcribe(paths: list[Path]) -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([str(path) for path in paths]) + "\n")
            process.stdin.flush()
            return float(json.loads(process.stdout.readline())["seconds"])

        yield transcribe


if __name__ == "__main__":
    main()
