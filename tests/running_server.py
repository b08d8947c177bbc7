"""A genai-server in separate processes, as an operator runs it, for tests over real sockets."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import httpx
import psutil

from tests.fork_server import COMMAND, ForkedProcess, can_fork, fork_server, take_terminal

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "models" / "demo"
# Options of a server with two scripted devices.
SCRIPTED = ("--device", "scripted:0,scripted:1", "--max-length", "2000")
# The demo model is too small for more, and idle threads would take the cores from other tests.
ONE_THREAD = {"GENAI_THREADS": "1"}
# Seconds that a test waits for what takes less than one on a quiet machine, before it fails. No test may depend on how
# long something takes, so that this is only an end for what hangs.
PATIENCE = 200.0
SETTINGS = ("GENAI_", "HOST", "PORT", "WORKERS", "RELOAD")


def free_port() -> int:
    """An unused TCP port, below those of clients: the system could give it to one before the server takes it."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def clean_environment(**settings: str) -> dict[str, str]:
    """This process's environment, with these server settings instead of all others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return kept | ONE_THREAD | settings


def folders(folder: Path) -> dict[str, str]:
    """Settings of a server with a folder of its own.

    Packed weights, and what was found out about the processor, are in a folder beside it, which the servers of a test
    process share: both take seconds.
    """
    return {"GENAI_PROFILE_DIR": str(folder / "profiles"), "GENAI_CACHE_DIR": str(folder.parent / "cache")}


def environment_without(module: str, folder: Path) -> dict[str, str]:
    """Settings of a Python process that does not find modules of this name, as if they were not installed.

    `folder` receives a module that blocks the import.
    """
    (folder / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name.partition('.')[0] == {module!r} else find(name, *rest)\n",
        encoding="utf-8",
    )
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE, *, least: float = 0.01) -> None:
    """Poll with growing pauses until the condition holds; fails after the time limit.

    `least` is the shortest pause, in seconds.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, f"still not so after {seconds} s"
        time.sleep(max(least, min(0.1, 0.01 + waited / 10)))


def running_after(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those processes that have not ended after this time; returns as soon as all have.

    A zombie has ended. An orphan's parent is the machine's first process, which may take a second to collect its exit
    status.
    """

    def running() -> list[psutil.Process]:
        return [process for process in processes if not has_ended(process)]

    with suppress(AssertionError):
        wait_until(lambda: not running(), seconds)
    return running()


@contextmanager
def suspended(process: psutil.Process) -> Iterator[None]:
    """The process does nothing until the block ends, so that an engine's requests do not end before."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended, even if its exit status is not collected."""
    try:
        return bool(not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def command_line(process: psutil.Process) -> list[str]:
    """The command line of a process; empty if it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie's error, too
        return []


def api_processes(server: "RunningServer") -> list[psutil.Process]:
    """The running API processes of `--workers`."""
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if "multiprocessing.spawn" in " ".join(command_line(child))]


class RunningServer:
    """One server: its address, an HTTP client for it, its processes and its log."""

    def __init__(self, process: "ForkedProcess | subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)
        self.folder = log.parent
        self._log = log

    def log(self) -> str:
        """The server's output so far."""
        return self._log.read_text(encoding="utf-8")

    def is_ready(self) -> bool:
        """Whether /readyz returns 200."""
        try:
            return self.client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def is_starting(self) -> bool:
        """Whether a device is still loading; /readyz is satisfied with one that is not."""
        return any(device["state"] == "starting" for device in self.health()["devices"].values())

    def health(self) -> dict[str, Any]:
        """The body of /healthz."""
        body: dict[str, Any] = self.client.get("/healthz").json()
        return body

    def device(self, name: str) -> dict[str, Any]:
        """The fields of a device in /healthz."""
        found: dict[str, Any] = self.health()["devices"][name]
        return found

    def chat(self, content: str, **fields: Any) -> httpx.Response:
        """POST /v1/chat with one user message."""
        return self.client.post("/v1/chat", json=body(content, **fields))

    def options(self, **fields: Any) -> httpx.Response:
        """POST /v1/admin/runtime_options."""
        return self.client.post("/v1/admin/runtime_options", json=fields)

    def recover(self) -> None:
        """Reset the runtime options to their initial values."""
        self.options(terminate_session="0")
        self.options(enable_profiling="0")

    @contextmanager
    def stream(self, content: str, *, path: str = "/v1/chat/stream", **fields: Any) -> Iterator["EventReader"]:
        """POST to a streaming endpoint and read its events."""
        with (
            httpx.Client(base_url=self.url, timeout=PATIENCE) as client,
            client.stream("POST", path, json=body(content, **fields)) as response,
        ):
            if response.status_code != 200:
                response.read()
            yield EventReader(response)

    @contextmanager
    def begun(self, content: str, num_events: int = 1, **fields: Any) -> Iterator[Iterator[str]]:
        """A stream of which this number of events has been read; yields the rest."""
        with self.stream(content, **fields) as events:
            reader = iter(events)
            for _ in range(num_events):
                next(reader)
            yield reader

    def idle(self, device: str) -> bool:
        """Whether nothing is running or queued on a device."""
        state = self.device(device)
        return bool(state["running"] == 0 and state["waiting"] == 0)

    def standing(self) -> dict[str, Any]:
        """The state that tests must restore: models with aliases, engines, running requests and enabled options."""
        devices = self.client.get("/v1/admin/runtime_options").json()["devices"]
        profiled = {name: options["enable_profiling"] for name, options in devices.items()}
        models = self.health()["models"]
        for device in (device for model in models.values() for device in model["devices"].values()):
            device.get("batching", {}).pop("kv_tokens", None)  # the server's own matter, and late at its start
        return {"models": models, "enable_profiling": profiled}


class EventReader:
    """The `data:` lines of a stream of server-sent events, as they arrive."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines() if response.status_code == 200 else iter(())

    def __iter__(self) -> Iterator[str]:
        return (line.removeprefix("data: ") for line in self._lines if line.startswith("data: "))


def last_event(reader: Iterator[str]) -> dict[str, Any]:
    """The last event of a stream, which is JSON."""
    found: dict[str, Any] = json.loads(list(reader)[-1])
    return found


def body(content: str, **fields: Any) -> dict[str, Any]:
    """A chat body with one user message."""
    return {"messages": [{"role": "user", "content": content}], **fields}


def refusal(response: httpx.Response) -> tuple[int, str, str | None]:
    """Status, code and parameter of a refusal."""
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


@contextmanager
def run_server(
    folder: Path,
    *options: str,
    settings: Mapping[str, str] | None = None,
    ready: bool = True,
    program: Sequence[str] = (),
    cwd: Path = ROOT,
    seconds: float = PATIENCE,
    port: int | None = None,
) -> Iterator[RunningServer]:
    """Start `genai-server serve`, wait until no device is loading, and finally end its processes.

    `folder` holds its log and its profiles. The server must be ready within `seconds`, and may take
    half of that to end. Without `port` it listens on a free one. A `program` runs in a new interpreter, and so does the
    server with a PYTHONPATH in its settings; other servers are forked where possible.
    """
    port = port or free_port()
    log = folder / "server.log"
    environment = clean_environment(**folders(folder), **(settings or {}))
    given = ["--port", str(port), *options]
    process: ForkedProcess | subprocess.Popen[bytes]
    with log.open("wb") as file:
        if program or not can_fork(environment):
            command = [*(program or (sys.executable, "-m", "genai_server", "serve")), *given]
            process = subprocess.Popen(command, cwd=cwd, env=environment, stderr=file, stdout=file)
        else:
            with open(os.devnull, "rb") as nothing:
                files = [nothing.fileno(), file.fileno(), file.fileno()]
                process = fork_server().start(COMMAND, ["serve", *given], environment, cwd, files)
    server = RunningServer(process, port, log)
    family = psutil.Process(process.pid)
    try:
        if ready:
            wait_until(lambda: process.poll() is not None or (server.is_ready() and not server.is_starting()), seconds)
            assert process.poll() is None, f"exit status {process.returncode}: {server.log()}"
        yield server
    finally:
        children: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):  # a test has killed it
            children = family.children(recursive=True)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(seconds / 2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        server.client.close()
        alive = running_after(children, PATIENCE / 2)
        for child in alive:
            child.kill()
        assert not alive, f"left behind: {alive}"


def run_command(
    *arguments: str,
    environment: Mapping[str, str],
    cwd: Path = ROOT,
    said: str = "",
    seconds: float = PATIENCE,
    python_path: str | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run `genai-server` with these arguments to its end, forked where possible. `said` is its standard input.

    `python_path` is PYTHONPATH for the processes that it starts. Raises subprocess.TimeoutExpired after `seconds`.
    """
    is_forked = can_fork(environment)
    if python_path is not None:
        environment = {**environment, "PYTHONPATH": python_path}
    if not is_forked:
        command = [sys.executable, "-m", "genai_server", *arguments]
        return subprocess.run(
            command, cwd=cwd, env=environment, input=said, capture_output=True, text=True, timeout=seconds, check=False
        )
    with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
        given.write(said.encode())
        given.seek(0)
        files = [file.fileno() for file in (given, output, errors)]
        process = fork_server().start(COMMAND, arguments, environment, cwd, files)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        # The file positions are shared with the process.
        texts = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (output, errors)]
    return subprocess.CompletedProcess(arguments, status, *texts)


def start_command(
    *arguments: str, environment: Mapping[str, str], files: Sequence[int], cwd: Path = ROOT
) -> "ForkedProcess | subprocess.Popen[bytes]":
    """Start `genai-server` with these arguments and these standard input, output and error, forked where possible.

    A terminal as its standard input is its controlling one.
    """
    if can_fork(environment):
        return fork_server().start(COMMAND, arguments, environment, cwd, files)
    command, (given, output, errors) = [sys.executable, "-m", "genai_server", *arguments], files
    take = take_terminal if os.isatty(given) else None
    return subprocess.Popen(
        command, cwd=cwd, env=environment, stdin=given, stdout=output, stderr=errors, preexec_fn=take
    )


def run_python(
    *arguments: str, environment: Mapping[str, str] | None = None, said: str = "", seconds: float | None = None
) -> str:
    """Run Python in the repository's folder, by default without settings; returns its output.

    Fails unless its status is 0. Raises subprocess.TimeoutExpired after `seconds`.
    """
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=clean_environment() if environment is None else environment,
        input=said,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


@contextmanager
def left_as_found(server: RunningServer) -> Iterator[None]:
    """Fails if the server's state differs afterwards, to protect the tests that follow."""
    before = server.standing()
    yield
    with suppress(AssertionError):  # a client that just disconnected may still be listed; the next line checks that
        wait_until(lambda: server.standing() == before)
    assert server.standing() == before


@contextmanager
def serve_with_uvicorn(
    folder: Path, *options: str, **settings: str
) -> Iterator[tuple["subprocess.Popen[bytes]", str, Path]]:
    """Plain uvicorn with the ASGI entry."""
    port = free_port()
    log = folder / "uvicorn.log"
    command = [sys.executable, "-m", "uvicorn", "genai_server.asgi:app", "--port", str(port), *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=clean_environment(**settings), stdout=file, stderr=file)
    try:
        yield process, f"http://127.0.0.1:{port}", log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
