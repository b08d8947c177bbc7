"""Measure how soon a disconnected client's slot is freed: the time from closing the socket until the request is no
longer in GET /v1/requests, which is polled.

Run it against an otherwise idle server, on the same machine, with `GENAI_MAX_BATCH_SIZE=4` and a slow model
(scripts/make_bench_model.py). Other requests run at the same time: as many as there are slots while the request waits,
one in the other phases.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from statistics import quantiles
from typing import Any
from urllib.parse import urlsplit

from _models.table import table

PHASES = ("queued", "prefill", "decode, streamed", "decode, not streamed")
HEAD = ["phase", "left", "p50 ms", "p95 ms", "longest ms"]
PATIENCE = 60.0
LEAVER = "leaver"
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child")


class Server:
    """The server at a URL, over separate connections, which are closed mid-request."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._asking = http.client.HTTPConnection(self._host, timeout=PATIENCE)

    def requests(self) -> dict[str, str]:
        """The phases of what runs and waits, by name."""
        found = self._get("/v1/requests")
        return {entry["id"]: entry["phase"] for entry in found["data"]}

    def places(self) -> int:
        """How many requests run at once."""
        devices = self._get("/healthz")["devices"].values()
        return sum(device["batching"]["num_slots"] for device in devices)

    def _get(self, path: str) -> dict[str, Any]:
        self._asking.request("GET", path)
        response = self._asking.getresponse()
        body = response.read()
        if response.status != 200:
            sys.exit(f"GET {path}: {response.status} {body.decode()}")
        found: dict[str, Any] = json.loads(body)
        return found

    def ask(self, name: str, num_words: int, *, stream: bool) -> http.client.HTTPConnection:
        """Begin a request for a long answer to new random words."""
        words = " ".join(random.choices(WORDS, k=num_words))
        messages = [{"role": "user", "content": words}]
        fields = {"messages": messages, "stream": stream, "ignore_eos": True, "temperature": 0, "cache_prompt": False}
        connection = http.client.HTTPConnection(self._host, timeout=PATIENCE)
        headers = {"content-type": "application/json", "x-request-id": name}
        connection.request("POST", "/v1/chat/completions", json.dumps(fields), headers)
        return connection

    def wait(self, condition: Callable[[dict[str, str]], bool]) -> None:
        """Wait until a condition holds for the requests."""
        end = time.monotonic() + PATIENCE
        while not condition(self.requests()):
            if time.monotonic() > end:
                sys.exit(f"not so after {PATIENCE:.0f} s: {self.requests()}")

    @contextmanager
    def others(self, number: int) -> Iterator[None]:
        """Run this number of other answers at the same time."""
        names = [f"other-{index}" for index in range(number)]
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(closing(self.ask(name, 16, stream=True)))
            self.wait(lambda requests: all(requests.get(name) == "decode" for name in names))
            yield
        self.wait(lambda requests: not requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8002", metavar="URL")
    parser.add_argument("--times", type=int, default=20, help="so often in each phase (default: 20)")
    parser.add_argument("--prompt-words", type=int, default=1000, help="of a prompt that is left while it is read")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    server = Server(arguments.url)
    if server.requests():
        sys.exit("somebody else uses the server")
    random.seed(0)
    rows = [columns(phase, list(times(server, phase, arguments.times, arguments.prompt_words))) for phase in PHASES]
    print(table([HEAD, *rows], markdown=arguments.markdown))


def times(server: Server, phase: str, number: int, prompt_words: int) -> Iterator[float]:
    """The seconds of each cancellation in a phase."""
    wanted, _, how = phase.partition(", ")
    with server.others(server.places() if wanted == "queued" else 1):
        for _ in range(number):
            words = prompt_words if wanted == "prefill" else 16
            leaving = server.ask(LEAVER, words, stream=how != "not streamed")
            server.wait(lambda requests: requests.get(LEAVER) == wanted)
            # Not always at the same place of a step.
            time.sleep(random.uniform(0.0, 0.1))
            began = time.perf_counter()
            leaving.close()
            server.wait(lambda requests: LEAVER not in requests)
            yield time.perf_counter() - began


def columns(phase: str, seconds: list[float]) -> list[str]:
    """A row of the table."""
    ranks = quantiles(seconds, n=100, method="inclusive")
    figures = (ranks[49], ranks[94], max(seconds))
    return [phase, f"{len(seconds)}", *(f"{1000 * value:.0f}" for value in figures)]


if __name__ == "__main__":
    main()
