"""The tool servers of the Model Context Protocol's own authors, whose tools a server runs for clients of all kinds.

Those on npm are installed; the one on PyPI, the SDKs and the browser are those of this environment.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _load.server import HOST, run_server

from .client import Check, Client, Place, Registry
from .program import run

_PROGRAM = Path(__file__).with_name("programs") / "tool_servers.py"
_SCRIPTS = _PROGRAM.parents[2]
_SECONDS = 300.0


@contextmanager
def _served(place: Place, files: Path) -> Iterator[str]:
    """The URL of a server on the scripted device with these tool servers."""
    commands = {
        "time": [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"],
        "everything": [str(place.commands / "mcp-server-everything"), "stdio"],
        "files": [str(place.commands / "mcp-server-filesystem"), str(files)],
    }
    tables = [f"[mcp.{name}]\ncommand = {json.dumps(command)}\n" for name, command in commands.items()]
    config = place.folder / "tools.toml"
    config.write_text("\n".join(tables), encoding="utf-8")
    folder = place.folder / "server"
    folder.mkdir(exist_ok=True)
    # Programs of npm are started by the `node` on the PATH.
    path = f"{place.commands}{os.pathsep}{os.environ['PATH']}"
    settings = {"GENAI_DEVICE": "scripted", "GENAI_MAX_LENGTH": "100000", "GENAI_CONFIG": str(config), "PATH": path}
    with run_server(folder, settings) as server:
        yield f"http://{HOST}:{server.port}"


def _check(place: Place) -> list[Check]:
    files = place.folder / "papers"
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir()
    key = f"key-{secrets.token_hex(6)}"
    (files / "key.txt").write_text(f"{key}\n", encoding="utf-8")
    with _served(place, files) as url:
        environment = {
            "CHECKED_URL": url,
            "CHECKED_FILE": str(files / "key.txt"),
            "CHECKED_KEY": key,
            "PYTHONPATH": str(_SCRIPTS),
            "PYTHONWARNINGS": "ignore",
        }
        return run([sys.executable, _PROGRAM], environment, place.folder, _SECONDS).checks


TOOL_SERVERS = (
    Client(
        "MCP reference servers",
        ("@modelcontextprotocol/server-everything", "@modelcontextprotocol/server-filesystem"),
        _check,
        Registry.NPM,
    ),
)
