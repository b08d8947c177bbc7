"""Fixtures: a clean environment for each test, and servers shared by the test session."""

import functools
import gc
import logging
import os
import signal
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import hypothesis
import pytest

import genai_server  # noqa: F401  first, for it switches ONNX Runtime's telemetry off: test modules import that directly
from genai_server.cli import main
from genai_server.supervisor import engine_process
from genai_server.system.processes import start_module
from genai_server.workers import process as worker_process
from tests.fork_server import close_fork_server, fork_server, start_module_forked
from tests.hand_clock import HandClock
from tests.running_server import DEMO, ROOT, SCRIPTED, SETTINGS, RunningServer, left_as_found, run_python, run_server
from tests.server_here import run_here

pytest_plugins = ["tests.forks"]

# Property tests try the same examples each time, without a time limit. HYPOTHESIS_EXAMPLES sets their number.
EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "25"))
hypothesis.settings.register_profile("genai-server", deadline=None, derandomize=True, max_examples=EXAMPLES)
hypothesis.settings.load_profile("genai-server")

# numpy's threads for matrices, unused here, take a quarter of the start-up time of hundreds of processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Each of the thousands of HTTP clients would reload all certificates, which takes longer than most tests.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]

# A shell that starts the tests in the background ignores Ctrl-C for them and all their child processes.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Collecting thousands of tests leaves hundreds of thousands of objects, which garbage collections would scan again and
# again.
gc.disable()


def pytest_unconfigure() -> None:
    """End the process that servers were forked from."""
    close_fork_server()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude all modules and tests from garbage collections: each server in this process starts with a full one."""
    if session.config.option.forks > 1 and not session.config.option.collectonly and sys.platform == "linux":
        fork_server()  # one for all processes that run tests
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings of the environment that runs the tests."""
    for name in list(os.environ):
        if name.startswith(SETTINGS):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def same_logging() -> Iterator[None]:
    """Restore the log's handlers and level: a handler that a test leaves would write to a stream that is closed."""
    log = logging.getLogger()
    handlers, level = log.handlers[:], log.level
    yield
    log.handlers[:] = handlers
    log.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def forked_processes() -> Iterator[None]:
    """Engines and workers of this process are forked, which takes a tenth of the time of a new interpreter."""
    with (
        patch.object(engine_process, "start_module", start_module_forked),
        patch.object(worker_process, "start_module", start_module_forked),
    ):
        yield


@pytest.fixture
def unforked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each engine and worker is a new interpreter, with a command line and an environment of its own."""
    monkeypatch.setattr(engine_process, "start_module", start_module)
    monkeypatch.setattr(worker_process, "start_module", start_module)


@pytest.fixture(scope="session")
def shared_scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("scripted"), *SCRIPTED) as server:
        yield server


@pytest.fixture(scope="session")
def shared_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("demo"), "--model-dir", str(DEMO)) as server:
        yield server


@pytest.fixture(scope="session")
def shared_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("workers"), "--device", "scripted", "--workers", "2") as server:
        yield server
    assert server.process.returncode == 0


@pytest.fixture(scope="module")
def scripted(shared_scripted: RunningServer) -> Iterator[RunningServer]:
    """A server with two scripted devices, shared by all tests and changed by none."""
    with left_as_found(shared_scripted):
        yield shared_scripted


@pytest.fixture(scope="module")
def workers(shared_workers: RunningServer) -> Iterator[RunningServer]:
    """A server of two API processes with one scripted device, shared by all tests, which leave it unchanged."""
    with left_as_found(shared_workers):
        yield shared_workers


@pytest.fixture(scope="session")
def shared_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_here(tmp_path_factory.mktemp("here"), *SCRIPTED) as server:
        yield server


@pytest.fixture(scope="module")
def own_scripted(shared_here: RunningServer) -> Iterator[RunningServer]:
    """A server like `scripted` whose API side runs in this process: for tests that change it and restore its state.

    They act as operators do, or replace or hold up functions of the API process.
    """
    with left_as_found(shared_here):
        yield shared_here


@pytest.fixture(scope="module")
def demo(shared_demo: RunningServer) -> Iterator[RunningServer]:
    """A server with the demo model, shared by all tests, which leave it unchanged."""
    with left_as_found(shared_demo):
        yield shared_demo


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model's directory with inputs for adapters, and two adapters, `lively` and `dreamy`."""
    folder = tmp_path_factory.mktemp("adapted") / "model"
    run_python("scripts/make_adapter_model.py", str(folder))
    return folder


def _no_process() -> None:
    raise OSError


@pytest.fixture
def refused_start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `genai-server serve` in this process with options and settings that it refuses; returns its error line.

    Fails if the server would start.
    """

    def start(*_: object, **__: object) -> None:
        pytest.fail("the settings were not refused")

    def serve(*options: str, **settings: str) -> str:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        assert main(["serve", *options]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        return printed.err

    # It would replace pytest's own handlers.
    monkeypatch.setattr("genai_server.cli.serve.serve_command.configure_logging", lambda *_: None)
    monkeypatch.setattr("genai_server.cli.serve.server_lifetime.SupervisorThread", start)
    # It would import much before it is killed.
    monkeypatch.setattr("genai_server.cli.serve.supervisor_start.start_supervisor", _no_process)
    monkeypatch.chdir(ROOT)
    return serve


@pytest.fixture
def clock() -> HandClock:
    """A clock that stands still."""
    return HandClock()


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """A folder for a server of this test."""
    return tmp_path


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for temporary files, with a name short enough for a Unix socket: at most 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Runs the coroutines among the tests, which are marked with `anyio`, on asyncio's event loop."""
    return "asyncio"
