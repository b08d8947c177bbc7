"""Checks grammars in worker processes before an engine uses them, so that a grammar that crashes or blocks the compiler
affects nothing else (`GrammarChecker`), and caches the results (`SaltedCache`).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from genai_server.messages.supervisor_protocol import Task
from genai_server.workers.process import ProcessDied, ProcessTimeout
from genai_server.workers.tasks import CHECK_GRAMMAR, Requester, SharedCalls, Workers

V = TypeVar("V")


class SaltedCache(Generic[V]):
    """A cache of values by salt and key, with a maximum number of entries. A salt is a text that separates clients,
    such as an API key.

    Response times reveal whether something is cached, so requests with different salts must share nothing. If there are
    too many entries, the least recently used entry of the salt with the most entries is dropped: no salt can evict what
    others use.
    """

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._by_salt: dict[str | None, OrderedDict[Hashable, V]] = {}
        self._num_entries = 0

    def __len__(self) -> int:
        return self._num_entries

    def get(self, salt: str | None, key: Hashable) -> V | None:
        """Return the cached value for a salt and key, and count it as used; None if there is no such value. The salt
        may be None.
        """
        entries = self._by_salt.get(salt)
        if entries is None or key not in entries:
            return None
        entries.move_to_end(key)
        return entries[key]

    def put(self, salt: str | None, key: Hashable, value: V) -> None:
        """Cache a value for a salt and key. If there are then too many entries, one is dropped."""
        entries = self._by_salt.setdefault(salt, OrderedDict())
        self._num_entries += key not in entries
        entries[key] = value
        entries.move_to_end(key)
        while self._num_entries > self._max_entries:
            self._drop_one()

    def _drop_one(self) -> None:
        salt, entries = max(self._by_salt.items(), key=lambda item: len(item[1]))
        entries.popitem(last=False)
        self._num_entries -= 1
        if not entries:
            del self._by_salt[salt]


# Maximum number of cached verdicts: an agent sends the same tools with each request.
_MAX_CACHED = 4096
# The results of a check.
RESULTS = ("passed", "refused", "crashed", "timed_out")
_CRASHES = "the grammar compiler crashes on it, or exceeds its memory limit"


@dataclass(frozen=True)
class _Verdict:
    """The result of checking a grammar: the error message if the grammar is invalid, and whether the result may be
    cached.
    """

    # The error message; None if the grammar is valid.
    words: str | None
    # One of RESULTS, for the metrics.
    result: str
    # Whether the verdict may be cached.
    is_lasting: bool = True


class GrammarChecker:
    """Checks the grammars of requests in worker processes and caches the results. Each API process has one. Only the
    event loop may use it.

    `count` is called with the result of each check, one of RESULTS, for the metrics.
    """

    def __init__(self, workers: Workers, timeout: float, count: Callable[[str], None] = lambda result: None) -> None:
        self._workers = workers
        self._timeout = timeout
        self._count = count
        self._calls: SharedCalls[_Verdict] = SharedCalls()
        self._verdicts: SaltedCache[_Verdict] = SaltedCache(_MAX_CACHED)

    async def complaint(self, grammar: str, requester: Requester) -> str | None:
        """Check a grammar, and return the error message for the client; None if the grammar is valid. Raises
        CheckerUnavailable if no worker process can check it, and QueueFull if too many grammars wait.

        Equal grammars of one tenant (API key) are checked once. A check that no request waits for any more is not
        started.
        """
        digest = hashlib.sha256(grammar.encode()).hexdigest()
        tenant = requester.owner.tenant
        if (verdict := self._verdicts.get(tenant, digest)) is None:
            verdict = await self._calls.run(f"{tenant} {digest}", lambda: self._check(grammar, digest, requester))
        return verdict.words

    async def _check(self, grammar: str, digest: str, requester: Requester) -> _Verdict:
        cost = len(grammar.encode())
        task = Task(CHECK_GRAMMAR.name, requester.owner, {}, {"grammar": grammar}, timeout=self._timeout, cost=cost)
        (answer,) = self._workers.submit([task])
        try:
            words: str | None = (await answer)["error"]
            verdict = _Verdict(words, "passed" if words is None else "refused")
        except ProcessTimeout:
            words = f"compiling it takes longer than {self._timeout:g} s (GENAI_GRAMMAR_TIMEOUT)"
            verdict = _Verdict(words, "timed_out", is_lasting=False)
        except ProcessDied:
            verdict = _Verdict(_CRASHES, "crashed")
        self._count(verdict.result)
        if verdict.is_lasting:
            self._verdicts.put(requester.owner.tenant, digest, verdict)
        return verdict
