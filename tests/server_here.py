"""A genai-server whose API side runs in this process, where tests can reach it; its engines are separate processes.

It starts in less than half of the time of `tests.running_server.run_server`, which is for tests of processes, signals,
the log or the environment.
"""

import argparse
import gc
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from genai_server.apis.app import Attachment
from genai_server.cli.serve.composition import attached_app
from genai_server.cli.serve.server_lifetime import _uvicorn_config, listen
from genai_server.config.settings import Settings
from genai_server.config.sources import add_options, load_settings
from genai_server.messages.launch import EngineLaunch
from genai_server.messages.supervisor_protocol import read_address
from genai_server.supervisor import engine_process
from genai_server.supervisor.engine_process import EngineProcess
from genai_server.supervisor.supervisor import Supervisor
from tests.running_server import ONE_THREAD, PATIENCE, RunningServer, folders, wait_until


class ServerHere(RunningServer):
    """Such a server; it has neither a process nor a log of its own."""

    def __init__(self, port: int, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)
        self.folder = folder


def module_server(*options: str, **settings: str) -> Any:
    """A fixture: one server for all tests of a module, run by `run_here` with these options and settings."""

    @pytest.fixture(scope="module")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
        with run_here(tmp_path_factory.mktemp("server"), *options, settings=settings) as running:
            yield running

    return server


@contextmanager
def starts_held() -> Iterator[None]:
    """Engines that a supervisor of this process is to start or restart wait until the block ends."""
    goes_on = threading.Event()

    def held(launch: EngineLaunch) -> EngineProcess:
        assert goes_on.wait(PATIENCE)
        return EngineProcess(launch)

    with patch.object(engine_process, "EngineProcess", held):
        try:
            yield
        finally:
            goes_on.set()


def app_for(settings: Settings, folder: Path) -> FastAPI:
    """The app of an API process for the supervisor in this folder."""
    attachment = Attachment(folder, partial(read_address, folder))
    return attached_app(settings, attachment, {}, on_loopback=settings.on_loopback)


@contextmanager
def run_here(
    folder: Path,
    *options: str,
    settings: Mapping[str, str] | None = None,
    supervise: Callable[[Settings], Supervisor] = Supervisor,
) -> Iterator[RunningServer]:
    """Serve with these options and settings of `serve` on a free port; yields when no device is loading."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    given = vars(parser.parse_args(["--port", "0", *options]))
    chosen = load_settings(given, environ={**ONE_THREAD, **folders(folder), **(settings or {})}, dotenv=None)
    with listen(chosen) as listener:
        supervisor = supervise(chosen)
        supervisor.start()
        api = uvicorn.Server(_uvicorn_config(chosen, app_for(chosen, supervisor.folder)))
        thread = threading.Thread(target=api.run, kwargs={"sockets": [listener]})
        thread.start()
        server = ServerHere(listener.getsockname()[1], folder)
        try:
            wait_until(lambda: server.is_ready() and not server.is_starting())
            yield server
        finally:
            server.client.close()
            api.should_exit = True
            thread.join()
            gc.freeze()  # repeat what `tests.conftest` excluded and the app included at its end
            supervisor.stop()
