"""What Ray Serve adds to a request and to a token of a stream: one replica compared with a single server.

usage: .venv/bin/python scripts/measure_scale_out.py [--model-dir FOLDER] [--rounds N] [--tokens N] [--quick]

Both serve the same model, and take turns. Each round asks for one token and streams an answer, on one connection. Times
are medians over the rounds; processor times are those of all processes of a server, by the kernel's clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from _load.server import DEMO, HOST, REPOSITORY, Server, clean_environment, free_port, run_server, running

_SECONDS_TO_START = 180.0
# Short requests of a round: one is too short for the kernel's clock.
_REQUESTS = 10
# Seconds without requests.
_IDLE = 2.0


@dataclass
class Measured:
    """The results of each round, in milliseconds."""

    request: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    token: list[float] = field(default_factory=list)
    # Of all processes of the server, beyond what they take without a request.
    request_cpu: list[float] = field(default_factory=list)
    token_cpu: list[float] = field(default_factory=list)
    # Milliseconds in a second without a request.
    idle_cpu: list[float] = field(default_factory=list)


@contextmanager
def deployed(folder: Path, settings: dict[str, str]) -> Iterator[Server]:
    """One replica on a Ray cluster of its own."""
    port = free_port()
    environment = clean_environment() | settings | {"RAY_raylet_start_wait_time_s": f"{_SECONDS_TO_START:.0f}"}
    environment |= {"GENAI_CACHE_DIR": str(folder / "cache"), "GENAI_LOG_LEVEL": "warning"}
    command = [sys.executable, "-m", "genai_server", "deploy", "ray", "--port", str(port)]

    def is_up() -> bool:
        try:
            return httpx.get(f"http://{HOST}:{port}/health").status_code == 200
        except httpx.TransportError:
            return False

    with running(command, environment, folder / "ray.log", is_up, _SECONDS_TO_START, cwd=REPOSITORY) as pid:
        yield Server(pid, port)


def processor_seconds(server: Server) -> float:
    """User and system time of a server's processes, up to now."""
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    times = [process.cpu_times() for process in processes]
    return sum(time.user + time.system for time in times)


def measure(server: Server, client: httpx.Client, num_tokens: int, into: Measured) -> None:
    """One round."""
    body = {"messages": [{"role": "user", "content": "Tell me more."}], "ignore_eos": True}
    at_rest = processor_seconds(server)
    time.sleep(_IDLE)
    idle = (processor_seconds(server) - at_rest) / _IDLE
    into.idle_cpu.append(idle * 1000)
    start, before = time.perf_counter(), processor_seconds(server)
    for _ in range(_REQUESTS):
        began = time.perf_counter()
        client.post("/v1/chat/completions", json=body | {"max_tokens": 1}).raise_for_status()
        into.request.append((time.perf_counter() - began) * 1000)
    used = processor_seconds(server) - before - idle * (time.perf_counter() - start)
    into.request_cpu.append(used / _REQUESTS * 1000)
    began, before, arrived = time.perf_counter(), processor_seconds(server), []
    with client.stream(
        "POST", "/v1/chat/completions", json=body | {"max_tokens": num_tokens, "stream": True}
    ) as answer:
        for line in answer.iter_lines():
            if '"content"' in line:
                arrived.append(time.perf_counter())
    used = processor_seconds(server) - before - idle * (time.perf_counter() - began)
    into.first_token.append((arrived[0] - began) * 1000)
    into.token.append((arrived[-1] - arrived[0]) / (num_tokens - 1) * 1000)
    into.token_cpu.append(used / num_tokens * 1000)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, default=DEMO)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=400, help="of a stream")
    parser.add_argument("--quick", action="store_true", help="three rounds of short streams")
    arguments = parser.parse_args()
    rounds, num_tokens = (3, 50) if arguments.quick else (arguments.rounds, arguments.tokens)
    settings = {"GENAI_MODEL_DIR": str(arguments.model_dir.absolute()), "GENAI_SPECULATION": "off"}
    with (
        tempfile.TemporaryDirectory(prefix="ray") as folder,
        run_server(Path(folder), settings) as single,
        deployed(Path(folder), settings | {"RAY_TMPDIR": folder}) as replica,
        httpx.Client(base_url=f"http://{HOST}:{single.port}", timeout=60) as to_single,
        httpx.Client(base_url=f"http://{HOST}:{replica.port}", timeout=60) as to_replica,
    ):
        pairs = [(single, to_single, Measured()), (replica, to_replica, Measured())]
        for server, client, _ in pairs:
            measure(server, client, num_tokens, Measured())
        for number in range(rounds):
            for server, client, measured in pairs if number % 2 else reversed(pairs):
                measure(server, client, num_tokens, measured)
    print(f"{os.cpu_count()} cores, {rounds} rounds, streams of {num_tokens} tokens")
    print("| median, ms | single server | Ray Serve | more |")
    print("|---|---:|---:|---:|")
    names = {
        "request": "a request of one token",
        "first_token": "first token of a stream",
        "token": "each further token",
        "request_cpu": "processor time of a request",
        "token_cpu": "processor time of a token",
        "idle_cpu": "processor time of a second without requests",
    }
    for name, title in names.items():
        one, other = (statistics.median(getattr(measured, name)) for _, _, measured in pairs)
        print(f"| {title} | {one:.2f} | {other:.2f} | {other - one:.2f} |")


if __name__ == "__main__":
    main()
