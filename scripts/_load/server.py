"""A server in separate processes, as an operator runs it, and what Linux reports about them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO = REPOSITORY / "models" / "demo"
HOST = "127.0.0.1"
_OURS = ("GENAI_", "HOST", "PORT", "WORKERS", "RELOAD")
_SECONDS_TO_STOP = 45.0


@dataclass(frozen=True)
class Server:
    """A running server: the process that answers HTTP (and watches the engines), its port, and a key if it has keys."""

    pid: int
    port: int
    key: str = ""

    def health(self) -> dict[str, Any]:
        """The models of /healthz."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        body: dict[str, Any] = httpx.get(f"http://{HOST}:{self.port}/healthz", timeout=10, headers=headers).json()
        models: dict[str, Any] = body["models"]
        return models

    def engines(self) -> list[dict[str, Any]]:
        """The devices of all models."""
        return [device for model in self.health().values() for device in model["devices"].values()]

    def engine_pid(self) -> int | None:
        """The process of the default model's first engine, if it is ready."""
        default = next(iter(self.health().values()))
        first = next(iter(default["devices"].values()))
        return first["pid"] if first["state"] == "ready" else None

    def is_idle(self) -> bool:
        """Whether nothing runs or waits, and every model is ready or unloaded."""
        engines = self.engines()
        return any(engine["state"] == "ready" for engine in engines) and all(
            engine["state"] in ("ready", "unloaded") and engine["running"] == engine["waiting"] == 0
            for engine in engines
        )

    def api_pids(self) -> list[int]:
        """The processes that answer HTTP: the server's own, or its several workers."""
        workers = []
        for child in psutil.Process(self.pid).children():
            with suppress(psutil.Error):
                if any("multiprocessing.spawn" in part for part in child.cmdline()):
                    workers.append(child.pid)
        return workers or [self.pid]

    def is_up(self) -> bool:
        """Whether it takes work. Raises DoesNotStart once no engine can load its model."""
        try:
            engines = self.engines()
            if engines and all(_has_failed(engine) for engine in engines):
                raise DoesNotStart("; ".join(str(engine.get("error", engine["state"])) for engine in engines))
            return self.is_idle()
        except (httpx.TransportError, KeyError):  # a stand-in answers before the first API process does
            return False


def _has_failed(engine: Mapping[str, Any]) -> bool:
    """Whether an engine has been given up, or has died repeatedly without loading its model."""
    return bool(engine["state"] == "failed" or (engine["state"] == "restarting" and engine["restarts"] > 1))


def clean_environment() -> dict[str, str]:
    """The environment without this server's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}


@contextmanager
def run_server(
    folder: Path,
    settings: Mapping[str, str],
    seconds_to_start: float = 300.0,
    *,
    log: Path | None = None,
    seconds_to_stop: float = _SECONDS_TO_STOP,
    key: str = "",
) -> Iterator[Server]:
    """Serve on a free port with these environment variables for settings. Profiles and packed weights go to `folder`,
    and so does the log, `server.log`, unless another file is given. A server with keys is asked with `key`. Raises
    DoesNotStart.
    """
    port = free_port()
    environment = clean_environment()
    environment |= {"GENAI_PROFILE_DIR": str(folder / "profiles"), "GENAI_CACHE_DIR": str(folder / "cache")}
    environment |= {"HOST": HOST, "PORT": str(port), **settings}
    command = [sys.executable, "-m", "genai_server", "serve"]
    with running(
        command,
        environment,
        log or folder / "server.log",
        Server(0, port, key).is_up,
        seconds_to_start,
        cwd=REPOSITORY,
        seconds_to_stop=seconds_to_stop,
    ) as pid:
        yield Server(pid, port, key)


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.create_server((HOST, 0)) as free:
        port: int = free.getsockname()[1]
        return port


def is_answered(url: str) -> bool:
    """Whether a GET of the URL is answered with 200."""
    try:
        return httpx.get(url, timeout=10).status_code == 200
    except httpx.TransportError:
        return False


class DoesNotStart(RuntimeError):
    """A server does not start; the message has the end of its log."""


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    is_up: Callable[[], bool],
    seconds_to_start: float,
    *,
    cwd: Path | None = None,
    seconds_to_stop: float = _SECONDS_TO_STOP,
) -> Iterator[int]:
    """Run a server, wait until it is up, and give its process id. At the end all its processes end, if need be by
    SIGKILL after `seconds_to_stop`.

    Raises DoesNotStart.
    """
    with log.open("wb") as file:
        # A session of its own, so that its other processes end with it.
        process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=file, stderr=file, start_new_session=True)
    try:
        end = time.monotonic() + seconds_to_start
        while not is_up():
            if process.poll() is not None or time.monotonic() > end:
                said = log.read_text(encoding="utf-8", errors="replace")
                raise DoesNotStart(f"the server does not start:\n{said[-2000:]}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(seconds_to_stop)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
