"""Checks grammars in separate processes, so that a grammar that crashes or blocks one affects nothing else."""

import asyncio
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from genai_server.errors import CheckerUnavailable
from genai_server.grammar_checker.checker_process import CheckerDied, CheckerProcess, CheckerTimeout

log = logging.getLogger(__name__)
# Each process checks one grammar at a time, so that a crash can be attributed. A typical grammar takes milliseconds, so
# more processes are not needed.
_PROCESSES = 2
# Maximum number of cached verdicts: an agent sends the same tools with each request.
_KEPT_VERDICTS = 4096
# The results of a check.
RESULTS = ("passed", "refused", "crashed", "timed_out")
_CRASHES = "the grammar compiler crashes on it, or exceeds its memory limit"


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
        with suppress(IndexError):  # the other thread may have taken the last one
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
