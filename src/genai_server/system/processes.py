"""The processes of a server: starts child processes that only their parent controls (`start_module`), limits their
memory, and makes the folder in which the processes of one server find each other (`open_runtime_folder`).
"""

import getpass
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from genai_server.errors import ConfigurationError

# Signals that a terminal or an operator sends to whole process groups.
GROUP_SIGNALS = [
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if name in signal.Signals.__members__
]
_CHECK_INTERVAL = 0.05
# The exit status of a process that exceeds its memory limit.
_MEMORY_EXIT_STATUS = 70

_ARBITER = "gunicorn.arbiter"


def start_module(
    module: str, environment: Mapping[str, str], arguments: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """Start `python -m module` as a process whose standard input and output are pipes, and return it. `environment` has
    its environment variables. Raises OSError if the process cannot be started.

    The module must call `ignore_group_signals`. Until then, signals to the process group are blocked.
    """
    command = [sys.executable, "-m", module, *arguments]
    with group_signals_blocked():  # a new process inherits what its thread blocks
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def in_words(status: int) -> str:
    """Return a process's exit status as text for operators, such as `exit status -9: killed, …`. A negative status is
    the number of the signal that ended the process.
    """
    if status == -9:
        return "exit status -9: killed, by the kernel if memory ran out, or by a user"
    if status < 0:
        return f"exit status {status}: signal {signal.strsignal(-status) or -status}"
    return f"exit status {status}"


def ignore_group_signals() -> None:
    """Let this process ignore signals that go to the whole process group, such as Ctrl-C. Called at the start of each
    child process.

    The parent process handles these signals; when it ends, the child process ends, too, because its standard input
    ends.
    """
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)


@contextmanager
def group_signals_blocked() -> Iterator[None]:
    """Return a context manager that blocks the signals which a terminal or a service manager sends to all processes of
    a group (`GROUP_SIGNALS`).

    They are blocked within the `with` block, for the calling thread and for the processes that it starts there. Does
    nothing on Windows.
    """
    if sys.platform == "win32":
        yield
    else:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def private_standard_output() -> int:
    """Reserve this process's standard output for messages to its parent: whatever native libraries print goes to
    standard error from now on.

    Returns the file descriptor to which the messages are written.
    """
    output = os.dup(1)
    os.dup2(2, 1)
    return output


def limit_memory(allowed: int) -> None:
    """Make sure that this process cannot use more than `allowed` bytes of memory in addition to what it uses now. On
    Linux the system refuses more memory; otherwise a thread watches the memory and ends the process.
    """
    if sys.platform == "linux":
        import resource

        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = used + allowed if hard == resource.RLIM_INFINITY else min(used + allowed, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    else:
        threading.Thread(target=watch_memory, args=(allowed,), daemon=True).start()


def watch_memory(allowed: int) -> None:
    """Wait until this process's memory has grown by `allowed` bytes, and then end the process, even while it runs
    native code. Runs in a thread of its own and does not return.
    """
    import psutil

    process = psutil.Process()
    limit = process.memory_info().rss + allowed
    while process.memory_info().rss < limit:
        time.sleep(_CHECK_INTERVAL)
    os._exit(_MEMORY_EXIT_STATUS)


def parent_of_workers() -> int | None:
    """Return the process id of the uvicorn or gunicorn process of which this process is a worker; None if this process
    is not a worker.
    """
    if (parent := multiprocessing.parent_process()) is not None:
        return parent.pid
    return os.getppid() if _ARBITER in sys.modules else None


def open_runtime_folder(pid: int) -> Path:
    """Return the runtime folder of the server whose first process has the id `pid`, and create it if necessary. In it,
    the server's processes find each other.

    Raises ConfigurationError if the folder cannot be created, or if it belongs to another user, who may have guessed
    its name.
    """
    folder = Path(tempfile.gettempdir()) / f"genai-server-{getpass.getuser()}-{pid}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be made: {error.strerror}") from None
    if sys.platform != "win32" and (
        not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077
    ):
        raise ConfigurationError(f"{folder} must be a folder that belongs to this user, with mode 0700")
    return folder


def own_folder(parent: Path, name: str) -> Path:
    """Return the path of this process's own folder below `parent`, for files of the kind `name`. The caller creates the
    folder, with mode 0700, and removes it.

    Folders of this kind that dead processes have left, or an earlier process with the same id, are removed.
    """
    for folder in parent.glob(f"{name}-*"):
        id = folder.name.rpartition("-")[2]
        if id.isdecimal() and (int(id) == os.getpid() or not psutil.pid_exists(int(id))):
            shutil.rmtree(folder, ignore_errors=True)
    return parent / f"{name}-{os.getpid()}"
