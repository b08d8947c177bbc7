"""Measure how long a server takes from its command to the first answer, and the processor time of its processes.

The caches are warm after the first start, which is not shown. On Linux only; run it with the interpreter of `.venv`.
On a busy machine, `chrt -r 1` in front of the command gives it the cores, as root.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
from _load.server import HOST, free_port
from _models.table import table

SECONDS = 120.0
LOOK_EVERY = 0.02
HEAD = ["start", "HTTP (s)", "first answer (s)", "processor time (s)", "load"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--starts", type=int, default=3, help="(3)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    rows = [start(arguments.model_dir, number) for number in range(arguments.starts + 1)]
    print(table([HEAD, *rows[1:]], markdown=arguments.markdown))


def start(model_dir: Path, number: int) -> list[str]:
    """A row of the table: a server that is started and stopped."""
    port = free_port()
    command = [sys.executable, "-m", "genai_server", "serve", str(model_dir), "--port", str(port)]
    began = time.monotonic()
    server = subprocess.Popen([*command, "--log-level", "warning"])
    try:
        with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=SECONDS) as client:
            seconds = [answered(client, "GET", "/livez", began), answered(client, "POST", "/v1/completions", began)]
        first = psutil.Process(server.pid)
        used = [f"{name_of(one)} {one.cpu_times().user + one.cpu_times().system:.2f}" for one in tree(first)]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(SECONDS)
    return [str(number), *(f"{one:.2f}" for one in seconds), ", ".join(used), f"{os.getloadavg()[0]:.1f}"]


def tree(first: psutil.Process) -> list[psutil.Process]:
    """A process and its descendants."""
    return [first, *first.children(recursive=True)]


def name_of(process: psutil.Process) -> str:
    """The package that a process runs; the first one is the API process."""
    return process.cmdline()[2].removeprefix("genai_server").strip(".").partition(".")[0] or "API"


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
