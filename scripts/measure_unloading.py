"""Measure what a model takes of memory, and that all of it comes back when it is unloaded.

Starts a server with the model, loads a copy of it under another name through the admin endpoint, lets both answer, and
unloads the copy, several times. On Linux only; run it with the interpreter of `.venv`.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil
from _models.memory import proportional_set_size
from _models.table import table

SECONDS = 600
HEAD = ["", "API process", "engines", "all"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path, nargs="?", default=Path("models/demo"), metavar="MODEL_DIR")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="loads and unloads (default 3)")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "copy"
        shutil.copytree(arguments.model_dir, copy)
        rows = measure(arguments.model_dir, copy, Path(temporary) / "cache", arguments.rounds)
    print(table([HEAD, *rows], markdown=arguments.markdown))


def measure(model_dir: Path, copy: Path, cache: Path, rounds: int) -> list[list[str]]:
    """The rows of the table."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "genai_server", "serve", "--port", str(port), "--model-name", "first"]
    command += ["--model-dir", str(model_dir), "--cache-dir", str(cache), "--log-level", "warning"]
    server = subprocess.Popen(command)
    rows = []
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS) as client:
            wait_until_ready(client)
            answer(client, "first")
            rows.append(row("one model", server.pid))
            for number in range(1, rounds + 1):
                post(client, "/v1/admin/models/load", {"name": "second", "path": str(copy)})
                answer(client, "second")
                rows.append(row(f"a second one loaded, {number}", server.pid))
                post(client, "/v1/admin/models/unload", {"name": "second"})
                rows.append(row(f"unloaded, {number}", server.pid))
    finally:
        server.terminate()
        server.wait()
    return rows


def wait_until_ready(client: httpx.Client) -> None:
    """Return once the server takes work."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server is not ready")


def answer(client: httpx.Client, model: str) -> None:
    """Have a model answer a prompt of some length."""
    message = {"role": "user", "content": "Tell me more. " * 50}
    post(client, "/v1/chat", {"model": model, "messages": [message], "max_tokens": 64, "ignore_eos": True})


def post(client: httpx.Client, path: str, body: dict[str, object]) -> None:
    """Send it, and end the script if it is refused."""
    response = client.post(path, json=body)
    if response.status_code != 200:
        raise SystemExit(f"{path}: {response.text}")


def row(what: str, pid: int) -> list[str]:
    """Megabytes of the server's processes now."""
    api = proportional_set_size(pid)
    children = psutil.Process(pid).children(recursive=True)
    engines = sum(proportional_set_size(child.pid) for child in children)
    return [what, *(f"{size / 1e6:.0f}" for size in (api, engines, api + engines))]


if __name__ == "__main__":
    main()
