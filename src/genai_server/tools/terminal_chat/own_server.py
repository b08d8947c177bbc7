"""Starts and stops a server for one command."""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from genai_server.config.settings import name_of_directory
from genai_server.errors import ChatFailed
from genai_server.tools.terminal_chat.chat_client import ChatClient

_ADDRESS = re.compile(r"listening on (https?://\S+)")
_POLL = 0.05
# Seconds for an answer whether it is ready.
_PATIENCE = 5.0
# Seconds to exit; no request is running any more.
_TIMEOUT = 10.0
_LAST_LINES = 5
_ERROR = re.compile(r"\S+ \S+ (ERROR|CRITICAL) ")


@contextmanager
def own_server(directory: Path, key_entry: str, options: Sequence[str] = ()) -> Iterator[str]:
    """Run a server for a model directory, on a free port of this machine, during the block. Yields its URL.

    `key_entry` is an entry of GENAI_API_KEYS, and `options` are further options of `serve`. The server accepts any
    model name. Ctrl-C does not reach it. If it does not start, ChatFailed is raised with errors from its log, or the
    last lines.
    """
    command = [sys.executable, "-m", "genai_server", "serve", "--model-dir", str(directory)]
    name = name_of_directory(str(directory))
    command += ["--model-name", name, "--model-aliases", f"*={name}", "--log-level", "info"]
    command += ["--log-format", "text"]
    command += ["--host", "127.0.0.1", "--port", "0", "--workers", "1", "--reload", "false", "--api-keys", key_entry]
    command += options
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as out:
            process = _start(command, out.fileno())
        try:
            yield _ready(process, log)
        finally:
            _end(process)


def _start(command: list[str], out: int) -> "subprocess.Popen[bytes]":
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, creationflags=flags)
    else:  # noqa: RET505  mypy takes what follows a return for unreachable on Windows
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)


def _ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Wait until the server is ready and return its URL. Raises ChatFailed if it does not start."""
    while process.poll() is None:
        match = _ADDRESS.search(log.read_text(encoding="utf-8", errors="replace"))
        if match and _is_ready(match[1]):
            return match[1]
        time.sleep(_POLL)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    why = [line for line in lines if _ERROR.match(line)] or lines[-_LAST_LINES:]
    raise ChatFailed("\n".join(["the chat's server did not start:", *why]))


def _is_ready(url: str) -> bool:
    client = ChatClient(url)
    with suppress(ChatFailed), closing(client.connect(_PATIENCE)) as connection:
        client.response(connection, "GET", "/readyz", None)
        return True
    return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
