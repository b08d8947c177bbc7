"""Measure what images cost: the time to the first token with a new and with a known image, several at once against one
after another, and how long an image holds up a running stream.

Run it against an otherwise idle server with a model that takes images, on the same machine:

    .venv/bin/python scripts/make_bench_model.py /tmp/images-model --shape qwen-3-vl
    .venv/bin/genai-server serve --model-dir /tmp/images-model
    .venv/bin/python scripts/measure_images.py http://127.0.0.1:8002 --markdown

The defaults take about two minutes where an image takes two seconds.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count, pairwise
from statistics import median
from typing import Any

import httpx
import numpy as np
from _models.table import table
from PIL import Image

HEAD = ["what", "median", "least", "most"]
_seeds = count(time.time_ns() % 2**32)


def new_image(width: int, height: int) -> dict[str, Any]:
    """A content part with an image that the server has not seen."""
    colors = np.random.default_rng(next(_seeds)).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(colors).resize((width, height), Image.Resampling.NEAREST).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


class Client:
    """Greedy streams of a server, of `tokens` each."""

    def __init__(self, url: str, tokens: int) -> None:
        self._http = httpx.Client(base_url=url, timeout=600)
        self._tokens = tokens

    def times(self, content: list[dict[str, Any]] | str, tokens: int = 0) -> Iterator[float]:
        """When the request began, and when each token came, in seconds; `tokens` 0 means the client's own number."""
        body = {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": tokens or self._tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        yield time.perf_counter()
        with self._http.stream("POST", "/v1/chat/stream", json=body) as response:
            if response.status_code != 200:
                raise SystemExit(response.read().decode())
            for line in response.iter_lines():
                if line.startswith("data:") and not json.loads(line[5:]).get("done"):
                    yield time.perf_counter()

    def ttft(self, content: list[dict[str, Any]] | str) -> float:
        """Seconds to the first token; the stream is read to its end."""
        times = list(self.times(content))
        return times[1] - times[0]


def text(words: str) -> dict[str, Any]:
    """A content part."""
    return {"type": "text", "text": words}


def several(client: Client, contents: list[list[dict[str, Any]]], at_once: int) -> float:
    """Seconds for a complete answer to each."""
    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(lambda content: list(client.times(content)), contents))
    return time.perf_counter() - began


def longest_gap(client: Client, disturb: Callable[[], object]) -> float:
    """The longest time between two tokens of a stream during which something else happens."""
    times = []
    with ThreadPoolExecutor(1) as thread:
        disturbing = None
        for moment in client.times("a long answer", 400):
            times.append(moment)
            if len(times) == 20:
                disturbing = thread.submit(disturb)
            if disturbing is not None and disturbing.done():
                break
    return max(after - before for before, after in pairwise(times[20:]))


def measure(client: Client, width: int, height: int, clients: int, rounds: int) -> list[list[str]]:
    """The table's rows. All of a round is measured alternately."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        image = new_image(width, height)
        found.setdefault("TTFT, new image", []).append(client.ttft([image, text("what is it?")]))
        found.setdefault("TTFT, the same image again", []).append(client.ttft([image, text("and what else?")]))
        fresh = [[new_image(width, height), text("what is it?")] for _ in range(2 * clients)]
        found.setdefault(f"{clients} requests, one after another", []).append(several(client, fresh[:clients], 1))
        found.setdefault(f"{clients} requests at once", []).append(several(client, fresh[clients:], clients))
        known = [[image, text(f"question {number}")] for number in range(2 * clients)]
        name = f"{clients} requests with a known image"
        found.setdefault(f"{name}, one after another", []).append(several(client, known[:clients], 1))
        found.setdefault(f"{name}, at once", []).append(several(client, known[clients:], clients))
        words = "one two three four five six seven eight " * (width * height // 1024 // 8)
        found.setdefault("longest gap of a stream, nothing else", []).append(longest_gap(client, lambda: time.sleep(3)))
        gap = longest_gap(client, lambda: client.ttft([new_image(width, height)]))
        found.setdefault("longest gap of a stream, next to a new image", []).append(gap)
        gap = longest_gap(client, partial(client.ttft, f"{next(_seeds)} {words}"))
        found.setdefault("longest gap of a stream, next to a text as long", []).append(gap)
    return [
        [what, *(f"{1000 * value:.0f} ms" for value in (median(values), min(values), max(values)))]
        for what, values in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", metavar="URL", help="of the server")
    parser.add_argument("--size", default="640x480", metavar="WxH", help="of the images (default 640x480)")
    parser.add_argument("--clients", type=int, default=2, help="requests at once (default 2)")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer (default 16)")
    parser.add_argument("--rounds", type=int, default=3, help="(default 3)")
    parser.add_argument("--markdown", action="store_true", help="print a table for a document")
    arguments = parser.parse_args()
    width, height = map(int, arguments.size.split("x"))
    client = Client(arguments.url, arguments.tokens)
    client.ttft([new_image(width, height)])  # starts the process that reads images
    rows = measure(client, width, height, arguments.clients, arguments.rounds)
    print(table([HEAD, *rows], markdown=arguments.markdown))


if __name__ == "__main__":
    main()
