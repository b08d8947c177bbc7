"""Starts `genai-server` by forking a process that has imported it: a tenth of the time of a new interpreter.

Run as a program, this module is that process. `tests.running_server` starts it for the first command.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# The imports of commands, and those of uvicorn by name. None of them starts a thread.
_IMPORTED = (
    "genai_server.tools.bench.bench_command",
    "genai_server.tools.terminal_chat.chat_command",
    "genai_server.tools.doctor.doctor_command",
    "genai_server.cli.models_command",
    "genai_server.cli.pull_command",
    "genai_server.tools.terminal_chat.run_command",
    "genai_server.tools.top.top_command",
    "genai_server.tools.tune.tune_command",
    "genai_server.cli.serve.serve_command",
    "genai_server.cli.serve.server_lifetime",
    "genai_server.cli.serve.composition",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.lifespan.on",
    "uvloop",
)
_LARGEST = 1 << 20
_WORD = 4


class ForkedProcess:
    """A forked process, with the methods of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], pipe: IO[bytes]) -> None:
        self.args = arguments
        self.pid = _read_word(pipe)
        self.returncode: int | None = None
        self._pipe = pipe

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
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._pipe], [], [], seconds)[0]:
            self.returncode = os.waitstatus_to_exitcode(_read_word(self._pipe))
            self._pipe.close()
        return self.returncode


class ForkServer:
    """The process that is forked. It ends with this one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=Path(__file__).parents[1])

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, files: Sequence[IO[bytes]]
    ) -> ForkedProcess:
        """Run `genai-server` with these arguments in a folder; the files are its standard input, output and error."""
        ours, theirs = os.pipe()
        request = json.dumps([list(arguments), dict(environment), str(folder)])
        socket.send_fds(self._socket, [request.encode()], [*(file.fileno() for file in files), theirs])
        os.close(theirs)
        return ForkedProcess(arguments, os.fdopen(ours, "rb", buffering=0))


def _read_word(pipe: IO[bytes]) -> int:
    """A number that the fork server wrote. Raises ChildProcessError if the server ended first; 0 means success."""
    data = pipe.read(_WORD)
    if len(data) < _WORD:
        raise ChildProcessError("the fork server has ended")
    return int.from_bytes(data, "little")


def _serve(requests: socket.socket) -> None:
    """Fork a process for each request until the requests end; returns in each forked process, which then continues."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _LARGEST, 4)
        if not request:
            sys.exit()
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    requests.close()
    *files, pipe = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pid := os.fork():
        # The parent process only waits for it, because the fork server has more to do.
        os.write(pipe, pid.to_bytes(_WORD, "little"))
        os.write(pipe, os.waitpid(pid, 0)[1].to_bytes(_WORD, "little"))
        os._exit(0)
    os.close(pipe)
    arguments, environment, folder = json.loads(request)
    for standard, file in enumerate(files):
        os.dup2(file, standard)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[1:] = arguments


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
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from genai_server.cli import main

    try:
        end.status = main()
    except SystemExit as exit:
        if not isinstance(exit.code, int | None):
            raise
        end.status = exit.code or 0
