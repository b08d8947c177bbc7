"""One grammar checker, from its start to its death, as the API process holds it."""

import contextlib
import json
import subprocess
import sys
import threading

from genai_server.config import checker_environment
from genai_server.errors import CheckerUnavailable

# Seconds for starting, on a busy machine.
_START_TIMEOUT = 60.0


class CheckerDied(Exception):
    """It has died of a check, or was killed by somebody; the message says how."""


class CheckerTimeout(Exception):
    """It was killed because a check took too long."""


class CheckerProcess:
    """Starts it and waits until it is ready. Every method may block; `end` may be called by any thread.

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
        """The process's number."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def check(self, grammar: str, timeout: float) -> str | None:
        """What it says against a grammar, None if nothing. Raises CheckerDied and CheckerTimeout; it is then gone."""
        return self._answer(timeout, json.dumps(grammar).encode() + b"\n")

    def end(self) -> None:
        """Kill it, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _answer(self, timeout: float, question: bytes = b"") -> str | None:
        """Send something and read one line."""
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
        with contextlib.suppress(OSError, ValueError):  # it has died: there is no line
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
