"""Checks in separate processes: grammars that end or block a process, and other grammars next to them."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from genai_server.errors import CheckerUnavailable
from genai_server.grammar_checker.checker import GrammarChecker, SaltedCache
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.workers.pool import WorkerLimits, WorkerPool
from genai_server.workers.process import ProcessDied, ProcessTimeout, WorkerProcess
from genai_server.workers.tasks import CHECK_GRAMMAR, Requester, TaskKind
from tests.running_server import wait_until

pytestmark = pytest.mark.anyio


def _schema(schema: object) -> str:
    return json.dumps({"grammars": [{"json_schema": schema}]})


ALICE, BOB = (Requester(TaskOwner(name)) for name in ("alice", "bob"))
KILLER = _schema({"type": "integer", "minimum": -(2**63), "maximum": -(2**63)})
WRONG = _schema({"type": "strin"})


def _endless(number: int = 0) -> str:
    patterns = [{"pattern": f"^(a|b)*a(a|b){{{n}}}b(a|b)*$"} for n in range(24)]
    return _schema({"allOf": patterns, "title": str(number)})


def _sound(number: int = 0) -> str:
    return _schema({"type": "string", "maxLength": number + 1})


class PatientProcess(WorkerProcess):
    """Has a time limit for endless grammars only, so that a busy machine exceeds none for others."""

    def ask(self, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
        return super().ask(question, data, timeout if "pattern" in question["grammar"] else 60)


class Seen:
    """The processes that a checker started, and the results of its checks."""

    def __init__(self) -> None:
        self.processes: list[WorkerProcess] = []
        self.results: Counter[str] = Counter()

    def start(self, kind: TaskKind, spec: Mapping[str, Any]) -> WorkerProcess:
        self.processes.append(PatientProcess(kind, spec))
        return self.processes[-1]

    def count(self, result: str) -> None:
        self.results[result] += 1

    @property
    def alive(self) -> list[int]:
        return [process.pid for process in self.processes if process.is_alive]


@contextlib.asynccontextmanager
async def _checking(seen: Seen, seconds: float = 60) -> AsyncIterator[GrammarChecker]:
    with contextlib.closing(WorkerPool(WorkerLimits(), seen.start)) as pool:
        yield GrammarChecker(pool, seconds, seen.count)
    # One that was being started meanwhile is ended by the thread that starts it.
    wait_until(lambda: seen.alive == [], 60)


async def _complaint(checker: GrammarChecker, grammar: str, requester: Requester = ALICE) -> str | None:
    return await checker.complaint(grammar, requester)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def checker(seen: Seen, request: pytest.FixtureRequest) -> AsyncIterator[GrammarChecker]:
    """A checker with a minute for each grammar, or as many seconds as the test's parameter says."""
    async with _checking(seen, getattr(request, "param", 60)) as checker:
        yield checker


async def test_grammar_that_crashes_the_checker_is_refused_alone(seen: Seen, checker: GrammarChecker) -> None:
    asked = [KILLER, *map(_sound, range(8)), WRONG]
    words, *sound, wrong = await asyncio.gather(*(_complaint(checker, grammar) for grammar in asked))
    assert ("crashes" in str(words), sound, "strin" in str(wrong)) == (True, [None] * 8, True)
    assert seen.results == {"crashed": 1, "passed": 8, "refused": 1}


@pytest.mark.parametrize("checker", [1], indirect=True)
async def test_grammar_that_times_out_is_refused_alone(seen: Seen, checker: GrammarChecker) -> None:
    words, sound = await asyncio.gather(_complaint(checker, _endless()), _complaint(checker, _sound()))
    assert (words, sound) == ("compiling it takes longer than 1 s (GENAI_GRAMMAR_TIMEOUT)", None)
    assert await _complaint(checker, _sound(1)) is None
    assert seen.results == {"timed_out": 1, "passed": 2}


async def test_check_is_repeated_when_its_process_is_killed(seen: Seen, checker: GrammarChecker) -> None:
    assert await _complaint(checker, _sound()) is None
    (first,) = seen.processes
    if sys.platform != "win32":
        os.kill(first.pid, signal.SIGSTOP)  # so that the check has started and has not ended
    checking = asyncio.ensure_future(_complaint(checker, _sound(1)))
    await asyncio.sleep(0)
    first._process.kill()
    assert await checking is None
    assert (len(seen.processes), seen.results) == (2, {"passed": 2})


async def test_a_process_that_has_died_while_idle_is_replaced(seen: Seen, checker: GrammarChecker) -> None:
    assert await _complaint(checker, _sound()) is None
    seen.processes[0]._process.kill()
    seen.processes[0]._process.wait()
    assert await _complaint(checker, _sound(1)) is None
    assert len(seen.processes) == 2


async def test_first_grammar_starts_the_only_checker_needed(seen: Seen, checker: GrammarChecker) -> None:
    assert seen.processes == []
    for number in range(5):
        assert await _complaint(checker, _sound(number)) is None
    assert len(seen.processes) == 1


async def test_grammar_is_checked_once_for_all_requests(seen: Seen, checker: GrammarChecker) -> None:
    assert await asyncio.gather(*(_complaint(checker, _sound()) for _ in range(9))) == [None] * 9
    assert await _complaint(checker, _sound()) is None
    first = await _complaint(checker, KILLER)
    assert await _complaint(checker, KILLER) == first
    assert seen.results == {"passed": 1, "crashed": 1}


@pytest.mark.parametrize("checker", [1], indirect=True)
async def test_abandoned_check_is_skipped_and_can_be_repeated(seen: Seen, checker: GrammarChecker) -> None:
    busy = [asyncio.ensure_future(_complaint(checker, _endless(number))) for number in range(2)]
    left = [asyncio.ensure_future(_complaint(checker, _sound(number))) for number in range(50)]
    stays = asyncio.ensure_future(_complaint(checker, _sound(99)))
    await asyncio.sleep(0)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert all(task.cancelled() for task in left)
    assert await stays is None
    assert await _complaint(checker, _sound(0)) is None
    assert None not in await asyncio.gather(*busy)
    assert seen.results == {"timed_out": 2, "passed": 2}


async def test_verdicts_are_not_shared_by_keys(seen: Seen, checker: GrammarChecker) -> None:
    for requester in (ALICE, BOB, ALICE, BOB):
        assert await _complaint(checker, _sound(), requester) is None
    both = (_complaint(checker, KILLER, requester) for requester in (ALICE, BOB))
    assert None not in await asyncio.gather(*both)
    assert seen.results == {"passed": 2, "crashed": 2}


def _checker_process() -> WorkerProcess:
    return WorkerProcess(CHECK_GRAMMAR, {})


def test_a_process_that_is_gone_says_how() -> None:
    process = _checker_process()
    with pytest.raises(ProcessDied, match="exit status -?[0-9]+"):
        process.ask({"grammar": KILLER}, b"", 60)
    assert not process.is_alive
    process = _checker_process()
    with pytest.raises(ProcessTimeout):
        process.ask({"grammar": _endless()}, b"", 0.2)
    assert not process.is_alive


def test_hang_after_a_few_tokens_is_found_by_following() -> None:
    process = _checker_process()
    with pytest.raises(ProcessTimeout):
        process.ask({"grammar": json.dumps({"grammars": [{"lark_grammar": 'start: /x*/ "x"'}]})}, b"", 1)


@pytest.mark.usefixtures("unforked")
def test_a_process_that_cannot_be_started_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(CheckerUnavailable, match="can be started: No such file"):
        _checker_process()
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(CheckerUnavailable, match="does not start: exit status 1"):
        _checker_process()


def test_the_least_recently_used_entry_is_dropped() -> None:
    cache = SaltedCache[int](2)
    cache.put(None, "one", 1)
    cache.put(None, "two", 2)
    assert cache.get(None, "one") == 1
    cache.put(None, "three", 3)
    assert [cache.get(None, key) for key in ("one", "two", "three")] == [1, None, 3]
    cache.put(None, "one", 4)
    assert (cache.get(None, "one"), len(cache)) == (4, 2)


def test_nobody_pushes_out_what_others_use() -> None:
    cache = SaltedCache[int](10)
    cache.put("b", "own", 0)
    for number in range(100):
        cache.put("a", number, number)
    assert cache.get("b", "own") == 0
    assert len(cache) == 10
