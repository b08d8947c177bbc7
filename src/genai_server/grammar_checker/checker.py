"""Checks grammars in separate processes, so that a grammar that crashes or blocks one affects nothing else."""

import asyncio
import contextlib
import hashlib
import json
import logging
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from genai_server.config.environment import checker_environment
from genai_server.errors import CheckerUnavailable

log = logging.getLogger(__name__)
# Each process checks one grammar at a time, so that a crash can be attributed. A typical grammar takes milliseconds, so
# more processes are not needed.
_PROCESSES = 2
# Maximum number of cached verdicts: an agent sends the same tools with each request.
_KEPT_VERDICTS = 4096
# The results of a check.
RESULTS = ("passed", "refused", "crashed", "timed_out")
# Maximum seconds for starting a process on a busy machine.
_START_TIMEOUT = 60.0
_CRASHES = "the grammar compiler crashes on it, or exceeds its memory limit"


class CheckerDied(Exception):
    """The process died of a check, or was killed from outside; the message says how."""


class CheckerTimeout(Exception):
    """The process was killed because a check took too long."""


class CheckerProcess:
    """Starts a process and waits until it is ready. Every method may block; any thread may call `end`.

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


@dataclass(frozen=True)
class _Verdict:
    """The result of a check."""

    # The error message; None if the grammar is valid.
    words: str | None
    # One of RESULTS, for the metrics.
    result: str
    # Whether the verdict may be cached.
    is_lasting: bool = True


@dataclass
class _Check:
    """A running check."""

    verdict: "asyncio.Future[_Verdict]"
    # Number of requests that wait for it.
    waiting: int = 0


class GrammarChecker:
    """Starts the processes when they are first needed, and replaces those that have died.

    Belongs to the event loop; must be closed. `count` is called with the result of each check, one of RESULTS.
    """

    def __init__(
        self,
        timeout: float,
        count: Callable[[str], None] = lambda result: None,
        start: Callable[[], CheckerProcess] = CheckerProcess,
    ) -> None:
        self._timeout = timeout
        self._count = count
        self._start = start
        self._threads = ThreadPoolExecutor(_PROCESSES, "grammar-checker")
        self._idle: list[CheckerProcess] = []
        self._processes: set[CheckerProcess] = set()
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._checks: dict[bytes, _Check] = {}
        self._closed = threading.Event()

    async def complaint(self, grammar: str) -> str | None:
        """The error message for a grammar; None if it is valid. Raises CheckerUnavailable.

        Equal grammars are checked once. A check that no request waits for any more is not started.
        """
        key = hashlib.sha256(grammar.encode()).digest()
        if key in self._verdicts:
            self._verdicts.move_to_end(key)
            return self._verdicts[key]
        if key not in self._checks:
            checking = asyncio.get_running_loop().run_in_executor(self._threads, self._check, grammar)
            self._checks[key] = _Check(checking)
            checking.add_done_callback(lambda done: self._note(key, done))
        check = self._checks[key]
        check.waiting += 1
        try:
            return (await asyncio.shield(check.verdict)).words
        finally:
            check.waiting -= 1
            if not check.waiting:
                check.verdict.cancel()
                if self._checks.get(key) is check:
                    del self._checks[key]

    def close(self) -> None:
        """End the processes. Blocks until they have ended."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in list(self._processes):
            process.end()

    def _note(self, key: bytes, done: "asyncio.Future[_Verdict]") -> None:
        if done.cancelled() or done.exception() is not None:
            return
        verdict = done.result()
        self._count(verdict.result)
        if verdict.is_lasting:
            self._verdicts[key] = verdict.words
            if len(self._verdicts) > _KEPT_VERDICTS:
                self._verdicts.popitem(last=False)

    def _check(self, grammar: str) -> _Verdict:
        """Check a grammar, in one of the threads.

        If a process dies, the check is repeated in a new one, because the first may have been killed from outside.
        """
        for _ in range(2):
            process = self._take()
            try:
                words = process.check(grammar, self._timeout)
            except CheckerTimeout as error:
                self._lose(process, error)
                words = f"compiling it takes longer than {self._timeout:g} s (GENAI_GRAMMAR_TIMEOUT)"
                return _Verdict(words, "timed_out", is_lasting=False)
            except CheckerDied as error:
                self._lose(process, error)
            else:
                self._idle.append(process)
                return _Verdict(words, "passed" if words is None else "refused")
        return _Verdict(_CRASHES, "crashed")

    def _take(self) -> CheckerProcess:
        """An idle process, or a new one."""
        with contextlib.suppress(IndexError):  # the other thread may have taken the last one
            while True:
                if (process := self._idle.pop()).is_alive:
                    return process
                self._processes.discard(process)
                process.end()
        if self._closed.is_set():
            raise CheckerUnavailable("the server is stopping")
        process = self._start()
        self._processes.add(process)
        if self._closed.is_set():  # closed in the meantime
            process.end()
        return process

    def _lose(self, process: CheckerProcess, error: Exception) -> None:
        self._processes.discard(process)
        if not self._closed.is_set():
            log.warning("a process that checks grammars has died (%s); another takes its place", error)
