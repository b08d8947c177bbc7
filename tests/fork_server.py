"""Starts `genai-server` and engines by forking a process that has imported them, ten times as fast as an interpreter.

Run as a program, this module is that process. `fork_server` starts it for the first command or engine. Each server that
it forks begins with a process of its own to fork its supervisor from, and that with one to fork engines from, so that
these are among the server's descendants.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO
from unittest.mock import patch

from genai_server.cli.serve import supervisor_start
from genai_server.supervisor import engine_process
from genai_server.system.processes import start_module

COMMAND = "genai_server.cli"
SUPERVISOR = "genai_server.supervisor.process"
ENGINE = "genai_server.engine.process"
# What is imported before the first engine is forked, before the first command (`serve` forks a supervisor, which forks
# engines), and before the first worker. Uvicorn imports some by name. None of them starts a thread.
_OF_ENGINES = (ENGINE, "onnxruntime", "onnxruntime_genai")
_OF_COMMANDS = (
    *_OF_ENGINES,
    SUPERVISOR,
    "genai_server.tools.bench.bench_command",
    "genai_server.tools.terminal_chat.chat_command",
    "genai_server.tools.doctor_command",
    "genai_server.cli.export_command",
    "genai_server.cli.models_command",
    "genai_server.cli.pull_command",
    "genai_server.tools.terminal_chat.run_command",
    "genai_server.tools.top_command",
    "genai_server.cli.serve.serve_command",
    "genai_server.cli.serve.server_lifetime",
    "genai_server.cli.serve.composition",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.lifespan.on",
    "uvloop",
)
_OF_WORKERS = (
    "genai_server.media.audio.decoding",
    "genai_server.media.audio.window_process",
    "genai_server.grammar_checker.compiler",
    "genai_server.media.images.process",
)
# What the commands import that fetch models, once it is needed.
_FETCHING = ("export", "pull", "run")
_OF_HUB = ("huggingface_hub.hf_api", "huggingface_hub.file_download")
_LARGEST = 1 << 20
_WORD = 4
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# What an interpreter reads when it starts, as the tests began; some of them set other values.
_READ_AT_START = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL")}
_starting = threading.Lock()


class ForkedProcess:
    """A forked process, with the methods of `subprocess.Popen`."""

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None

    def __init__(self, arguments: Sequence[str], pipe: int) -> None:
        self.args = arguments
        self._pipe = pipe
        weakref.finalize(self, os.close, pipe)
        self.pid = _read_word(pipe)
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit status; None if it has not ended."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended, which another process may see first."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._pipe], [], [], seconds)[0]:
            with self._lock:  # several threads may wait
                if self.returncode is None:
                    self.returncode = os.waitstatus_to_exitcode(_read_word(self._pipe))
        return self.returncode


class ForkServer:
    """A process that is forked, at the other end of a socket. It ends with this one."""

    def __init__(self, requests: socket.socket, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self._requests = requests
        self._process = process

    def start(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, files: Sequence[int]
    ) -> ForkedProcess:
        """Run `main` of a module with these arguments in a folder, with these standard input, output and error."""
        ours, theirs = os.pipe()
        request = json.dumps([module, list(arguments), dict(environment), str(folder)])
        socket.send_fds(self._requests, [request.encode()], [*files, theirs])
        os.close(theirs)
        return ForkedProcess(arguments, ours)

    def start_module(self, module: str, environment: Mapping[str, str], arguments: Sequence[str] = ()) -> ForkedProcess:
        """What `start_module` of genai_server.system.processes does."""
        their_input, our_input = os.pipe()
        our_output, their_output = os.pipe()
        try:
            process = self.start(module, arguments, environment, Path.cwd(), [their_input, their_output, 2])
        finally:
            os.close(their_input)
            os.close(their_output)
            process_input, process_output = os.fdopen(our_input, "wb"), os.fdopen(our_output, "rb")
        process.stdin, process.stdout = process_input, process_output
        return process

    def close(self) -> None:
        """End the process."""
        self._requests.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def fork_server() -> ForkServer:
    """The process that all servers and engines of this process are forked from. Any thread may call this."""
    with _starting:
        return _fork_server()


def close_fork_server() -> None:
    """End the process that `fork_server` has started, if it has."""
    if _fork_server.cache_info().currsize:
        _fork_server().close()


@cache
def _fork_server() -> ForkServer:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=Path(__file__).parents[1])
    return ForkServer(ours, process)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether a forked process behaves like a new one."""
    return sys.platform == "linux" and all(environment.get(name) == value for name, value in _READ_AT_START.items())


def start_module_forked(
    module: str, environment: Mapping[str, str], arguments: Sequence[str] = ()
) -> "ForkedProcess | subprocess.Popen[bytes]":
    """Start a module as a process, forked where possible, in place of `start_module` of system/processes.py."""
    start = fork_server().start_module if can_fork(environment) else start_module
    return start(module, environment, arguments)


def _read_word(pipe: int) -> int:
    """A number that the fork server wrote. Raises ChildProcessError if the server ended first; 0 means success."""
    data = os.read(pipe, _WORD)
    if len(data) < _WORD:
        raise ChildProcessError("the fork server has ended")
    return int.from_bytes(data, "little")


@cache
def _import_for(module: str, *, fetches: bool) -> None:
    """Import what is the same in all processes that run this module."""
    names = _OF_ENGINES if module == ENGINE else _OF_COMMANDS
    for name in (*(_OF_WORKERS if module in _OF_WORKERS else names), *(_OF_HUB if fetches else ())):
        importlib.import_module(name)
    gc.freeze()


def _serve(requests: socket.socket) -> str:
    """Fork a process for each request until the requests end; returns the module to run in each forked process."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _LARGEST, 4)
        if not request:
            os._exit(0)
        module, arguments, environment, folder = json.loads(request)
        _import_for(module, fetches=module == COMMAND and not {*_FETCHING}.isdisjoint(arguments[:1]))
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    requests.close()
    *files, pipe = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pid := os.fork():
        # The parent process only waits for it, because the fork server has more to do.
        _end_with_parent()
        for file in files:
            os.close(file)
        os.write(pipe, pid.to_bytes(_WORD, "little"))
        os.write(pipe, os.waitpid(pid, 0)[1].to_bytes(_WORD, "little"))
        os._exit(0)
    os.close(pipe)
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    if os.isatty(0):
        take_terminal()
    _reopen_terminals()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[1:] = arguments
    return str(module)


def _run(module: str) -> int | None:
    """Run a module whose processes are forked, too."""
    if constants := sys.modules.get("huggingface_hub.constants"):
        importlib.reload(constants)  # it has read the environment of the process that was forked
    if module == COMMAND and sys.argv[1:2] == ["serve"]:
        _fork_processes_of(supervisor_start)
    elif module == SUPERVISOR:
        _fork_processes_of(engine_process)
    status: int | None = importlib.import_module(module).main()
    return status


def _fork_processes_of(starter: ModuleType) -> None:
    """Fork a process from which is forked what this module starts; returns in this process only."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        patch.object(starter, "start_module", ForkServer(ours).start_module).start()
        return
    ours.close()
    _end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _run(_serve(theirs))


def take_terminal() -> None:
    """Make standard input, which is a terminal, that of this process, as after a login: Ctrl-C in it is a signal."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _reopen_terminals() -> None:
    """Make new standard streams for terminals: the fork server's own were made for something that can be sought."""
    if os.isatty(0):
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if os.isatty(1):
        sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", closefd=False)
    if os.isatty(2):
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


class _QuickEnd:
    """Ends a forked process after its threads and `atexit` callbacks, without the interpreter's own end.

    That would visit each object that was imported before the fork, and so copy its memory: half of the processor time
    of a server that answers few requests.
    """

    def __init__(self) -> None:
        # The exit status; None before the command has ended, and for an error, which ends the process as always.
        self.status: int | None = None
        atexit.register(self._end)  # the first one, which is called last

    def _end(self) -> None:
        if self.status is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.status)


if __name__ == "__main__":
    end = _QuickEnd()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    requests = socket.socket(fileno=int(sys.argv[1]))
    try:
        end.status = _run(_serve(requests))
    except SystemExit as exit:
        if not isinstance(exit.code, int | None):
            raise
        end.status = exit.code or 0
