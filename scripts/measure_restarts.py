"""Measure the time to the first token of a long prompt after a restart, with the prefix cache on disk and without.

Starts servers with the model on this machine, one after the other. Each prompt is read by a first server, which is then
killed. The next ones are asked the same: one with the prefix cache on disk, one without. The first answer of a server
is a short one, so that both are warm.

    .venv/bin/python scripts/make_bench_model.py /tmp/bench-model
    .venv/bin/python scripts/measure_restarts.py /tmp/bench-model
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from statistics import median

import httpx
from _load.server import HOST, Server, run_server
from _models.table import table

WORDS = Path(__file__).with_name("_models") / "words" / "words.txt"
SECONDS = 900
# Tokens of a segment, at most.
MAX_SEGMENT = 256
HEAD = ["tokens", "without", "from disk", "ratio", "from disk, cached tokens", "MB on disk", "same answer"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, metavar="MODEL_DIR")
    parser.add_argument("--tokens", default="1000,4000,10000", help="lengths of prompts, separated by commas")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="restarts for each length (default 3)")
    parser.add_argument("--type", default="same", choices=("same", "fp16"), help="GENAI_PREFIX_CACHE_TYPE")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    lengths = [int(number) for number in arguments.tokens.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        rows = measure(arguments.model_dir.resolve(), lengths, arguments.rounds, arguments.type, Path(temporary))
    print(table([HEAD, *rows], markdown=arguments.markdown))


def measure(model_dir: Path, lengths: list[int], rounds: int, stored_type: str, folder: Path) -> list[list[str]]:
    """The rows of the table, one for each length."""
    settings = {
        "GENAI_MODEL_DIR": str(model_dir),
        "GENAI_MAX_LENGTH": str(max(lengths) + 200),
        "GENAI_LOG_LEVEL": "warning",
    }
    on_disk = settings | {
        "GENAI_PREFIX_CACHE_BYTES": "8000000000",
        "GENAI_PREFIX_CACHE_DIR": str(folder / "prefixes"),
        "GENAI_PREFIX_CACHE_TYPE": stored_type,
    }
    rows = []
    for length in lengths:
        prompt = new_prompt(length)
        with run_server(folder, on_disk, seconds_to_start=SECONDS) as server:
            first = ask(server, prompt)
            size = wait_until_stored(server, first.num_tokens)
            os.kill(server.pid, signal.SIGKILL)
        without, loaded = [], []
        for _ in range(rounds):
            with run_server(folder, settings, seconds_to_start=SECONDS) as server:
                ask(server, "hello")
                without.append(ask(server, prompt))
            with run_server(folder, on_disk, seconds_to_start=SECONDS) as server:
                ask(server, "hello")
                loaded.append(ask(server, prompt))
        slow, fast = median(answer.seconds for answer in without), median(answer.seconds for answer in loaded)
        same = all(answer.text == first.text for answer in loaded)
        rows.append(
            [
                str(first.num_tokens),
                f"{slow:.2f} s",
                f"{fast:.2f} s",
                f"{fast / slow:.3f}",
                str(min(answer.num_cached for answer in loaded)),
                f"{size / 1e6:.0f}",
                "yes" if same else "no",
            ]
        )
    return rows


class Answer:
    """One token, and how long it took."""

    def __init__(self, seconds: float, body: dict[str, object]) -> None:
        self.seconds = seconds
        choices, usage = body["choices"], body["usage"]
        assert isinstance(choices, list)
        assert isinstance(usage, dict)
        self.text: str = choices[0]["text"]
        self.num_tokens: int = usage["prompt_tokens"]
        self.num_cached: int = usage["prompt_tokens_details"]["cached_tokens"]


def ask(server: Server, prompt: str) -> Answer:
    """Send a prompt; the answer has one token, so it is complete at its first."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    started = time.perf_counter()
    response = httpx.post(f"http://{HOST}:{server.port}/v1/completions", json=body, timeout=SECONDS)
    if response.status_code != 200:
        raise SystemExit(response.text)
    return Answer(time.perf_counter() - started, response.json())


def wait_until_stored(server: Server, num_tokens: int) -> int:
    """Wait until all complete segments of a prompt are stored; returns the bytes on disk."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        (engine,) = server.engines()
        about = engine.get("prefix_disk_cache", {})
        if about.get("stored_tokens", 0) > num_tokens - MAX_SEGMENT:
            return int(about["num_bytes"])
        time.sleep(0.5)
    raise SystemExit(f"the server stores nothing: {server.health()}")


def new_prompt(num_tokens: int) -> str:
    """Random words of about this number of tokens, which no server has read before."""
    words = WORDS.read_text(encoding="utf-8").split()[:3000]
    return " ".join(random.choice(words) for _ in range(int(num_tokens / 2.3)))


if __name__ == "__main__":
    main()
