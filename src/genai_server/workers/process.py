"""A worker process as the pool handles it: `WorkerProcess` starts it, asks it and ends it. The process itself runs
worker_loop.py.

It runs one task at a time, so that a crash can be attributed to a task. Its answers are JSON, because unpickling what
an untrusted process sends would be unsafe.
"""

import contextlib
import json
import threading
from collections.abc import Mapping
from typing import Any, Protocol

from genai_server.config.environment import untrusted_work_environment
from genai_server.system.processes import start_module
from genai_server.workers.tasks import TaskKind

# Maximum seconds for starting a process on a busy machine.
_START_TIMEOUT = 60.0
# Maximum bytes of an answer: a list of as many tokens as an image may have takes far fewer.
_MAX_ANSWER = 16 * 1024 * 1024


class ProcessDied(Exception):
    """Raised when a worker process has died while it ran a task, or was killed from outside. The message says how."""


class ProcessTimeout(Exception):
    """Raised when a worker process was killed because its answer to a question took too long."""


class AnyWorkerProcess(Protocol):
    """The interface of a worker process that the pool uses. WorkerProcess implements it. All methods may block; `end`
    is thread-safe.
    """

    # Whether `end` was called.
    is_ended: bool

    @property
    def is_alive(self) -> bool:
        """Whether the worker process is running and can accept a question."""
        ...

    def ask(self, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
        """Send a question, with the bytes `data` that belong to it, to the worker process, and return the answer.
        Blocks for at most `timeout` seconds.

        Raises ProcessDied or ProcessTimeout, after which the process no longer runs.
        """
        ...

    def end(self) -> None:
        """Kill the process, even while it works on a task."""
        ...


class WorkerProcess:
    """A worker process for tasks of one kind. The constructor starts it with the parameters `spec`, sent as JSON, and
    waits until it is ready. The pool creates it in a thread.

    The constructor raises the error class of the kind (`kind.unavailable`) if the process cannot be started.
    """

    def __init__(self, kind: TaskKind, spec: Mapping[str, Any]) -> None:
        try:
            self._process = start_module(kind.module, untrusted_work_environment(), [json.dumps(spec)])
        except OSError as error:
            raise kind.unavailable(f"no process that {kind.purpose} can be started: {error.strerror}") from None
        self.is_ended = False
        try:
            ready = self._exchange(b"", _START_TIMEOUT)
        except (ProcessDied, ProcessTimeout) as error:
            raise kind.unavailable(f"the process that {kind.purpose} does not start: {error}") from None
        if reason := ready.get("failed"):
            self.end()
            raise kind.unavailable(f"the process that {kind.purpose} does not start: {reason}")

    @property
    def pid(self) -> int:
        """The process id of the worker process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the worker process is running and can accept a question."""
        return self._process.poll() is None

    def ask(self, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
        """Send a question, with the bytes `data` that belong to it, to the worker process, and return its answer.
        Blocks for at most `timeout` seconds.

        Raises ProcessDied or ProcessTimeout, after which the process no longer runs.
        """
        head = json.dumps({**question, "size": len(data)}).encode()
        return self._exchange(head + b"\n" + data, timeout)

    def _exchange(self, question: bytes, timeout: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        too_late = threading.Event()

        def give_up() -> None:
            too_late.set()
            self._process.kill()

        limit = threading.Timer(timeout, give_up)
        limit.daemon = True
        limit.start()
        line = b""
        with contextlib.suppress(OSError, ValueError):  # the process has died; there is no line
            self._process.stdin.write(question)
            self._process.stdin.flush()
            line = self._process.stdout.readline(_MAX_ANSWER)
        limit.cancel()
        with contextlib.suppress(ValueError):  # it is no process of ours any more
            if line.endswith(b"\n") and isinstance(answer := json.loads(line), dict):
                return answer
        self._process.kill()
        status = self._process.wait()
        self._close()
        if too_late.is_set():
            raise ProcessTimeout(f"no answer within {timeout:g} s")
        raise ProcessDied(f"exit status {status}")

    def end(self) -> None:
        """Kill the process, even while it works on a task."""
        self.is_ended = True
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()
