"""Checks grammars in separate processes, so that a grammar that crashes or blocks one affects nothing else."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from genai_server.config.environment import untrusted_work_environment
from genai_server.errors import CheckerUnavailable
from genai_server.process_pool import ProcessDied, ProcessPool, ProcessTimeout, WorkerProcess

# Maximum number of cached verdicts: an agent sends the same tools with each request.
_KEPT_VERDICTS = 4096
# The results of a check.
RESULTS = ("passed", "refused", "crashed", "timed_out")
_CRASHES = "the grammar compiler crashes on it, or exceeds its memory limit"


class CheckerProcess(WorkerProcess):
    """A process that compiles grammars. Raises CheckerUnavailable if it cannot be started."""

    module, purpose = "genai_server.grammar_checker.process", "checks grammars"
    unavailable = CheckerUnavailable

    def __init__(self) -> None:
        super().__init__(untrusted_work_environment())

    def check(self, grammar: str, timeout: float) -> str | None:
        """The compiler's error message for a grammar; None if it is valid.

        Raises ProcessDied and ProcessTimeout, after which the process is gone.
        """
        found: str | None = self.ask({"grammar": grammar}, b"", timeout)["error"]
        return found


@dataclass(frozen=True)
class _Verdict:
    """The result of a check."""

    # The error message; None if the grammar is valid.
    words: str | None
    # One of RESULTS, for the metrics.
    result: str
    # Whether the verdict may be cached.
    is_lasting: bool = True


class GrammarChecker:
    """Checks grammars and caches the verdicts.

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
        self._pool: ProcessPool[CheckerProcess, _Verdict] = ProcessPool(CheckerProcess, start)
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()

    async def complaint(self, grammar: str) -> str | None:
        """The error message for a grammar; None if it is valid. Raises CheckerUnavailable.

        Equal grammars are checked once. A check that no request waits for any more is not started.
        """
        key = hashlib.sha256(grammar.encode()).digest()
        if key in self._verdicts:
            self._verdicts.move_to_end(key)
            return self._verdicts[key]
        verdict = await self._pool.call(key, lambda: self._check(grammar), lambda verdict: self._note(key, verdict))
        return verdict.words

    def close(self) -> None:
        """End the processes. Blocks until they have ended."""
        self._pool.close()

    def _note(self, key: bytes, verdict: _Verdict) -> None:
        self._count(verdict.result)
        if verdict.is_lasting:
            self._verdicts[key] = verdict.words
            if len(self._verdicts) > _KEPT_VERDICTS:
                self._verdicts.popitem(last=False)

    def _check(self, grammar: str) -> _Verdict:
        """Check a grammar, in one of the threads."""
        try:
            words = self._pool.with_process(lambda process: process.check(grammar, self._timeout))
        except ProcessTimeout:
            words = f"compiling it takes longer than {self._timeout:g} s (GENAI_GRAMMAR_TIMEOUT)"
            return _Verdict(words, "timed_out", is_lasting=False)
        except ProcessDied:
            return _Verdict(_CRASHES, "crashed")
        return _Verdict(words, "passed" if words is None else "refused")
