"""Measure the memory of a model, and that all of it is freed when it is unloaded.

Starts a server with the model, loads a copy of it under another name through the admin endpoint, lets both answer, and
unloads the copy, several times. On Linux only; run it with the interpreter of `.venv`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import httpx
import psutil
from _load.footprint import footprint
from _load.server import HOST, run_server
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
        rows = measure(arguments.model_dir.resolve(), copy, Path(temporary), arguments.rounds)
    print(table([HEAD, *rows], markdown=arguments.markdown))


def measure(model_dir: Path, copy: Path, folder: Path, rounds: int) -> list[list[str]]:
    """The rows of the table; what the server writes goes to `folder`."""
    settings = {"GENAI_MODEL_DIR": str(model_dir), "GENAI_MODEL_NAME": "first", "GENAI_LOG_LEVEL": "warning"}
    with (
        run_server(folder, settings, seconds_to_start=SECONDS) as server,
        httpx.Client(base_url=f"http://{HOST}:{server.port}", timeout=SECONDS) as client,
    ):
        answer(client, "first")
        rows = [row("one model", server.pid)]
        for number in range(1, rounds + 1):
            post(client, "/v1/admin/models/load", {"name": "second", "path": str(copy)})
            answer(client, "second")
            rows.append(row(f"a second one loaded, {number}", server.pid))
            post(client, "/v1/admin/models/unload", {"name": "second"})
            rows.append(row(f"unloaded, {number}", server.pid))
    return rows


def answer(client: httpx.Client, model: str) -> None:
    """Send a prompt of some length to a model."""
    message = {"role": "user", "content": "Tell me more. " * 50}
    post(client, "/v1/chat", {"model": model, "messages": [message], "max_tokens": 64, "ignore_eos": True})


def post(client: httpx.Client, path: str, body: dict[str, object]) -> None:
    """Send it, and end the script if it is refused."""
    response = client.post(path, json=body)
    if response.status_code != 200:
        raise SystemExit(f"{path}: {response.text}")


def row(what: str, pid: int) -> list[str]:
    """Megabytes of the server's processes now."""
    api = footprint(pid).pss
    engines = sum(footprint(child.pid).pss for child in psutil.Process(pid).children(recursive=True))
    return [what, *(f"{size / 1e6:.0f}" for size in (api, engines, api + engines))]


if __name__ == "__main__":
    main()
