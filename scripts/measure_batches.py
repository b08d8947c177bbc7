"""Measure what a large batch costs the process that answers HTTP: its memory, and the time it takes to answer /healthz.

The batch is uploaded, validated, run on a scripted device for some seconds, and cancelled, which ends each line that is
left. Linux and macOS.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
from _load.server import HOST, Server, run_server
from _models.table import table

HEAD = ["phase", "seconds", "lines ended", "memory, MiB", "/healthz p50, ms", "p99", "worst"]
_ENDPOINT = "/v1/chat/completions"
_EVERY = 0.02


class Watch:
    """Asks for /healthz again and again, and notes how long that takes, and the largest memory of the process."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._process = psutil.Process(server.pid)
        self._is_over = threading.Event()
        self.seconds: list[float] = []
        self.memory = 0
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def taken(self) -> tuple[list[float], int]:
        """The times and the memory since the last call, in seconds and bytes."""
        seconds, memory = self.seconds, self.memory
        self.seconds, self.memory = [], 0
        return sorted(seconds), memory

    def end(self) -> None:
        """Ask no more."""
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        with httpx.Client(base_url=f"http://{HOST}:{self._server.port}", timeout=60) as client:
            while not self._is_over.wait(_EVERY):
                began = time.perf_counter()
                client.get("/healthz")
                self.seconds.append(time.perf_counter() - began)
                self.memory = max(self.memory, self._process.memory_info().rss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=100_000, metavar="N", help="requests of the batch (100000)")
    parser.add_argument("--bytes", type=int, default=2000, metavar="N", help="bytes of each request (2000)")
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S", help="for which it runs (30)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"GENAI_DEVICE": "scripted", "GENAI_FILES_DIR": f"{folder}/files", "GENAI_LOG_LEVEL": "warning"}
        path = Path(folder) / "input.jsonl"
        write_input(path, arguments.lines, arguments.bytes)
        with run_server(Path(folder), settings) as server:
            rows = list(measured(server, path, arguments.seconds))
    print(table([HEAD, *rows], markdown=arguments.markdown))


def write_input(path: Path, num_lines: int, num_bytes: int) -> None:
    """Write a file of requests."""
    with path.open("w") as file:
        for number in range(num_lines):
            body = {"messages": [{"role": "user", "content": f"say {number}"}], "user": ""}
            line = {"custom_id": f"line-{number}", "method": "POST", "url": _ENDPOINT, "body": body}
            body["user"] = "x" * max(0, num_bytes - len(json.dumps(line)) - 1)
            file.write(json.dumps(line) + "\n")


def measured(server: Server, path: Path, seconds: float) -> Iterator[list[str]]:
    """A row for each phase."""
    watch = Watch(server)
    client = httpx.Client(base_url=f"http://{HOST}:{server.port}/v1", timeout=600)

    def row(phase: str, began: float, ended: int = 0) -> list[str]:
        times, memory = watch.taken()
        places = [len(times) // 2, len(times) * 99 // 100, -1]
        shown = [f"{1000 * times[place]:.1f}" if times else "-" for place in places]
        return [phase, f"{time.monotonic() - began:.1f}", f"{ended}", f"{memory / 2**20:.0f}", *shown]

    began = time.monotonic()
    time.sleep(2)
    yield row("idle", began)
    began = time.monotonic()
    with path.open("rb") as file:
        uploaded = client.post("/files", files={"file": file}, data={"purpose": "batch"}).raise_for_status().json()
    yield row("upload", began)
    began = time.monotonic()
    body = {"input_file_id": uploaded["id"], "endpoint": _ENDPOINT, "completion_window": "24h"}
    batch = client.post("/batches", json=body).raise_for_status().json()
    batch = until(client, batch["id"], "in_progress")
    yield row("validation", began)
    began = time.monotonic()
    time.sleep(seconds)
    batch = client.get(f"/batches/{batch['id']}").json()
    yield row("running", began, ended(batch))
    began = time.monotonic()
    client.post(f"/batches/{batch['id']}/cancel")
    batch = until(client, batch["id"], "cancelled")
    yield row("cancellation", began, ended(batch))
    watch.end()


def until(client: httpx.Client, id: str, status: str) -> dict[str, Any]:
    """The batch once it has this status."""
    while True:
        batch: dict[str, Any] = client.get(f"/batches/{id}").json()
        if batch["status"] in (status, "completed", "failed"):
            return batch
        time.sleep(0.1)


def ended(batch: dict[str, Any]) -> int:
    """How many requests of a batch have ended."""
    counts: dict[str, int] = batch["request_counts"]
    return counts["completed"] + counts["failed"]


if __name__ == "__main__":
    main()
