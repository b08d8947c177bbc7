"""Measure what a batch costs the requests that somebody waits for, and what it makes of the time that they leave.

usage: .venv/bin/python scripts/measure_background.py [--url URL | --model-dir FOLDER] [--rounds N] [--requests N] …

It starts a server for the model, or asks an otherwise idle one. Each round has a block of interactive requests without
a batch, and one while a batch of `--batch` requests runs, in turns; the batch is made anew for each block. Interactive
requests have new prompts and are streamed; a client pauses between two of them for a random time. A table compares the
times to the first token and between two tokens; the last line gives the tokens of the batch, next to the interactive
requests and alone.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, quantiles

import httpx
from _load.server import DEMO, HOST, run_server
from _models.table import table

HEAD = ["milliseconds", "alone p50", "batch p50", "ratio", "alone p95", "batch p95", "ratio"]
PATIENCE = 600.0
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child")
_TEXT = re.compile(r'"content":"[^"]')
_GENERATED = re.compile(r"^\w+[:_]generation_tokens_total\{.*\} (\S+)$", re.MULTILINE)


@dataclass
class Times:
    """Seconds of interactive requests."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)


@dataclass
class Batch:
    """What the batch has generated while it ran."""

    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Load:
    """The interactive requests of a block."""

    requests: int
    clients: int
    prompt_words: int
    tokens: int
    pause: float


class Server:
    """The server at a URL."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(base_url=url, timeout=PATIENCE, headers=headers)
        self.input = ""

    def upload(self, number: int, prompt_words: int, tokens: int) -> None:
        """Upload the input of the batches."""
        lines = []
        for index in range(number):
            body = _body(prompt_words, tokens)
            lines.append(
                json.dumps({"custom_id": f"{index}", "method": "POST", "url": "/v1/chat/completions", "body": body})
            )
        files = {"file": ("batch.jsonl", "\n".join(lines).encode())}
        self.input = self._json(self.client.post("/v1/files", data={"purpose": "batch"}, files=files))["id"]

    def start(self) -> str:
        """Start a batch; returns its id once it generates tokens."""
        fields = {"input_file_id": self.input, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch: str = self._json(self.client.post("/v1/batches", json=fields))["id"]
        before = self.generated()
        self._wait(lambda: self.generated() > before)
        return batch

    def cancel(self, batch: str) -> None:
        """Cancel a batch, and wait until nothing of it is left."""
        self._json(self.client.post(f"/v1/batches/{batch}/cancel"))
        self._wait(lambda: self._status(batch) == "cancelled")

    def _status(self, batch: str) -> str:
        found: str = self._json(self.client.get(f"/v1/batches/{batch}"))["status"]
        if found in ("completed", "failed", "expired"):
            sys.exit(f"the batch is {found}: --batch or --batch-tokens must be higher")
        return found

    def generated(self) -> float:
        """Tokens that the engines have generated up to now; reported once a second."""
        return sum(float(value) for value in _GENERATED.findall(self.client.get("/metrics").text))

    def ask(self, load: Load, into: Times) -> None:
        """One interactive request."""
        body = _body(load.prompt_words, load.tokens) | {"stream": True}
        began = last = time.perf_counter()
        with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                sys.exit(f"{response.status_code} {response.read().decode()}")
            is_first = True
            for line in response.iter_lines():
                if not _TEXT.search(line):
                    continue
                now = time.perf_counter()
                (into.first if is_first else into.between).append(now - (began if is_first else last))
                last, is_first = now, False

    def _wait(self, condition: object) -> None:
        assert callable(condition)
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                sys.exit(f"not so after {PATIENCE:.0f} s")
            time.sleep(0.2)

    def _json(self, response: httpx.Response) -> dict[str, str]:
        if response.status_code >= 400:
            sys.exit(f"{response.request.url}: {response.status_code} {response.text}")
        found: dict[str, str] = response.json()
        return found


def _body(prompt_words: int, tokens: int) -> dict[str, object]:
    words = " ".join(random.choices(WORDS, k=prompt_words))
    messages = [{"role": "user", "content": words}]
    return {"messages": messages, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}


def run_block(server: Server, load: Load, into: Times) -> None:
    """All interactive requests of a block."""

    def run_client(number: int) -> None:
        for _ in range(load.requests // load.clients):
            time.sleep(random.expovariate(1 / load.pause) if load.pause else 0.0)
            server.ask(load, into)

    with ThreadPoolExecutor(load.clients) as threads:
        list(threads.map(run_client, range(load.clients)))


def run_next_to(server: Server, load: Load, into: Times, next_to: Batch, alone: Batch, seconds: float) -> None:
    """The same while a batch runs, after it has run alone for twice these seconds."""
    batch = server.start()
    measure_alone(server, alone, seconds)
    own = len(into.first) + len(into.between)
    before, began = server.generated(), time.perf_counter()
    run_block(server, load, into)
    time.sleep(1.1)  # until the next report
    next_to.tokens += server.generated() - before - (len(into.first) + len(into.between) - own)
    next_to.seconds += time.perf_counter() - began
    server.cancel(batch)


def measure_alone(server: Server, alone: Batch, seconds: float) -> None:
    """What the batch generates alone, once its first answers have ended and others have begun."""
    time.sleep(seconds)
    before, began = server.generated(), time.perf_counter()
    time.sleep(seconds)
    alone.tokens += server.generated() - before
    alone.seconds += time.perf_counter() - began


def rows(alone: Times, next_to: Times) -> list[list[str]]:
    """The rows of the table."""
    found = []
    for title, one, other in (
        ("time to first token", alone.first, next_to.first),
        ("time between tokens", alone.between, next_to.between),
    ):
        before, after = (quantiles(values, n=100, method="inclusive") for values in (one, other))
        row = [title]
        for rank in (49, 94):
            row += [f"{1000 * before[rank]:.1f}", f"{1000 * after[rank]:.1f}", f"{after[rank] / before[rank]:.3f}"]
        found.append(row)
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, default=DEMO, help="to serve (default: models/demo)")
    parser.add_argument("--url", default="", help="a server that runs already")
    parser.add_argument("--key", default="", help="an API key, if that server needs one")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=12, help="interactive requests of a block (default: 12)")
    parser.add_argument("--clients", type=int, default=1, help="interactive clients (default: 1)")
    parser.add_argument(
        "--pause", type=float, default=1.0, help="mean seconds between a client's requests (default: 1)"
    )
    parser.add_argument("--prompt-words", type=int, default=120)
    parser.add_argument("--tokens", type=int, default=32, help="of an interactive answer (default: 32)")
    parser.add_argument("--batch", type=int, default=1000, help="requests of the batch (default: 1000)")
    parser.add_argument("--batch-tokens", type=int, default=128, help="of an answer of the batch (default: 128)")
    parser.add_argument(
        "--alone", type=float, default=20.0, help="seconds that the batch is measured alone (default: 20)"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    random.seed(0)
    if arguments.url:
        measure(Server(arguments.url, arguments.key), arguments)
        return
    with tempfile.TemporaryDirectory(prefix="background") as folder:
        settings = {"GENAI_MODEL_DIR": str(arguments.model_dir.absolute()), "GENAI_FILES_DIR": f"{folder}/files"}
        with run_server(Path(folder), settings) as own:
            measure(Server(f"http://{HOST}:{own.port}", ""), arguments)


def measure(server: Server, arguments: argparse.Namespace) -> None:
    """Run all blocks, and print what they took."""
    load = Load(arguments.requests, arguments.clients, arguments.prompt_words, arguments.tokens, arguments.pause)
    server.upload(arguments.batch, arguments.prompt_words, arguments.batch_tokens)
    run_block(server, Load(2, 1, load.prompt_words, load.tokens, 0.0), Times())
    alone, next_to, batch_next_to, batch_alone = Times(), Times(), Batch(), Batch()
    for number in range(arguments.rounds):
        for has_batch in (False, True) if number % 2 else (True, False):
            if has_batch:
                run_next_to(server, load, next_to, batch_next_to, batch_alone, arguments.alone)
            else:
                run_block(server, load, alone)
    print(table([HEAD, *rows(alone, next_to)], markdown=arguments.markdown))
    busy = fmean(alone.first) + fmean(alone.between) * (load.tokens - 1)
    print(
        f"batch: {batch_next_to.rate:.1f} tokens/s next to interactive requests, {batch_alone.rate:.1f} alone; "
        f"one client has a request for {busy / (busy + load.pause):.0%} of the time"
    )


if __name__ == "__main__":
    main()
