"""The API process's handle of one grammar checker, from its start to its death."""

import contextlib
import json
import subprocess
import sys
import threading

from genai_server.config import checker_environment
from genai_server.errors import CheckerUnavailable

# Maximum seconds for starting on a busy machine.
_START_TIMEOUT = 60.0


class CheckerDied(Exception):
    """The process died of a check, or was killed from outside; the message says how."""


class CheckerTimeout(Exception):
    """The process was killed because a check took too long."""


class CheckerProcess:
    """Starts the process and waits until it is ready. Every method may block; any thread may call `end`.

    Raises CheckerUnavailable if it cannot be started.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", "genai_server.grammar_checker.process"]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=checker_environment()
            )
        except OSError as error:
            raise CheckerUnavailable(f"no process that checks grammars can be started: {error.strerror}") from None
        try:
            self._answer(_START_TIMEOUT)
        except (CheckerDied, CheckerTimeout) as error:
            raise CheckerUnavailable(f"the process that checks grammars does not start: {error}") from None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process can take a check."""
        return self._process.poll() is None

    def check(self, grammar: str, timeout: float) -> str | None:
        """The compiler's error message for a grammar; None if it is valid.

        Raises CheckerDied and CheckerTimeout, after which the process is gone.
        """
        return self._answer(timeout, json.dumps(grammar).encode() + b"\n")

    def end(self) -> None:
        """Kill the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _answer(self, timeout: float, question: bytes = b"") -> str | None:
        """Send a line and read one."""
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
            line = self._process.stdout.readline()
        limit.cancel()
        if line.endswith(b"\n"):
            found: str | None = json.loads(line)
            return found
        self._process.kill()
        status = self._process.wait()
        self._close()
        if too_late.is_set():
            raise CheckerTimeout(f"no answer within {timeout:g} s")
        raise CheckerDied(f"exit status {status}")

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()
