"""Measure how long a server takes from its command to the first answer, and what its processes hold after requests.

Each round starts a server whose weights are packed in a cache that is mapped into memory, and one whose session packs
them. The first start, which fills the caches, is not shown. Memory is the proportional set size. On Linux only; run it
with the interpreter of `.venv`. On a busy machine, `chrt -r 1` in front of the command gives it the cores, as root.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
from _load.footprint import footprint
from _load.server import DEMO, HOST, clean_environment, free_port
from _models.table import table

SECONDS, SECONDS_TO_ANSWER = 120.0, 1800.0
LOOK_EVERY = 0.02
SLOTS, MAX_LENGTH = 16, 2048
MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS = 1000, 48
# Lower ids are special tokens. Every bench model has at least these tokens.
FIRST_TOKEN, LAST_TOKEN = 3, 1900
HEAD = ["weights", "HTTP (s)", "first answer (s)", "processor time (s)", "MB"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=DEMO, metavar="MODEL_DIR")
    parser.add_argument("--starts", type=int, default=3, help="of each kind (3)")
    parser.add_argument("--requests", type=int, default=100, help="before memory is read (100)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    bodies = mixed_requests(arguments.requests)
    with tempfile.TemporaryDirectory() as cache:
        kinds = {"packed once, mapped": cache, "packed by the session": "none"}
        start(arguments.model_dir, cache, [])
        rows = [
            [name, *start(arguments.model_dir, folder, bodies)]
            for _ in range(arguments.starts)
            for name, folder in kinds.items()
        ]
    print(table([HEAD, *rows], markdown=arguments.markdown))


def mixed_requests(number: int) -> list[dict[str, Any]]:
    """Completions of prompts of all lengths, mostly short, without common beginnings."""
    chance = random.Random(0)
    found = []
    for _ in range(number):
        length = round(math.exp(chance.uniform(0, math.log(MAX_PROMPT_TOKENS))))
        prompt = [chance.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(length)]
        found.append({"prompt": prompt, "max_tokens": chance.randint(1, MAX_OUTPUT_TOKENS), "ignore_eos": True})
    return found


def start(model_dir: Path, cache: str, bodies: list[dict[str, Any]]) -> list[str]:
    """The figures of a server that is started, asked and stopped."""
    port = free_port()
    command = [sys.executable, "-m", "genai_server", "serve", str(model_dir), f"--port={port}", "--log-level=warning"]
    command += [f"--cache-dir={cache}", f"--max-batch-size={SLOTS}", f"--max-length={MAX_LENGTH}"]
    began = time.monotonic()
    server = subprocess.Popen(command, env=clean_environment())
    try:
        with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=SECONDS_TO_ANSWER) as client:
            seconds = [answered(client, "GET", "/livez", began), answered(client, "POST", "/v1/completions", began)]
            processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
            used = each(processes, lambda one: f"{one.cpu_times().user + one.cpu_times().system:.2f}")
            with ThreadPoolExecutor(SLOTS) as pool:
                for response in pool.map(lambda body: client.post("/v1/completions", json=body), bodies):
                    response.raise_for_status()
            held = each(processes, lambda one: f"{footprint(one.pid).pss / 1e6:.0f}")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(SECONDS)
    return [*(f"{one:.2f}" for one in seconds), used, held]


def each(processes: list[psutil.Process], figure: Callable[[psutil.Process], str]) -> str:
    """A figure of each process, named by the package that it runs; the first one is the API process."""
    names = [one.cmdline()[2].removeprefix("genai_server").strip(".").partition(".")[0] or "API" for one in processes]
    return ", ".join(f"{name} {figure(one)}" for name, one in zip(names, processes, strict=True))


def answered(client: httpx.Client, method: str, path: str, began: float) -> float:
    """The seconds from `began` to an answer with the status 200."""
    body = {"prompt": "Once upon a time", "max_tokens": 1} if method == "POST" else None
    while time.monotonic() - began < SECONDS:
        try:
            if client.request(method, path, json=body).status_code == httpx.codes.OK:
                return time.monotonic() - began
        except httpx.TransportError:
            pass
        time.sleep(LOOK_EVERY)
    sys.exit(f"{path} was not answered within {SECONDS:g} s")


if __name__ == "__main__":
    main()
