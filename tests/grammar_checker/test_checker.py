"""Checks in separate processes: grammars that end or block a process, and other grammars next to them."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from genai_server.errors import CheckerUnavailable
from genai_server.grammar_checker.checker import CheckerProcess, GrammarChecker
from genai_server.process_pool import ProcessDied, ProcessTimeout


def _schema(schema: object) -> str:
    return json.dumps({"grammars": [{"json_schema": schema}]})


KILLER = _schema({"type": "integer", "minimum": -(2**63), "maximum": -(2**63)})
WRONG = _schema({"type": "strin"})


def _endless(number: int = 0) -> str:
    patterns = [{"pattern": f"^(a|b)*a(a|b){{{n}}}b(a|b)*$"} for n in range(24)]
    return _schema({"allOf": patterns, "title": str(number)})


def _sound(number: int = 0) -> str:
    return _schema({"type": "string", "maxLength": number + 1})


class PatientProcess(CheckerProcess):
    """Has a time limit for endless grammars only, so that a busy machine exceeds none for others."""

    def check(self, grammar: str, timeout: float) -> str | None:
        return super().check(grammar, timeout if "pattern" in grammar else 60)


class Seen:
    """The processes that a checker started, and the results of its checks."""

    def __init__(self) -> None:
        self.processes: list[CheckerProcess] = []
        self.results: Counter[str] = Counter()

    def start(self) -> CheckerProcess:
        self.processes.append(PatientProcess())
        return self.processes[-1]

    def count(self, result: str) -> None:
        self.results[result] += 1

    @property
    def alive(self) -> list[int]:
        return [process.pid for process in self.processes if process.is_alive]


@contextlib.asynccontextmanager
async def _checking(seen: Seen, seconds: float = 60) -> AsyncIterator[GrammarChecker]:
    checker = GrammarChecker(seconds, seen.count, seen.start)
    try:
        yield checker
    finally:
        checker.close()
    assert seen.alive == []


def _run(work: Callable[[GrammarChecker], Awaitable[None]], seconds: float = 60) -> Seen:
    seen = Seen()

    async def main() -> None:
        async with _checking(seen, seconds) as checker:
            await work(checker)

    asyncio.run(main())
    return seen


def test_grammar_that_crashes_the_checker_is_refused_alone() -> None:
    async def work(checker: GrammarChecker) -> None:
        asked = [KILLER, *map(_sound, range(8)), WRONG]
        words, *sound, wrong = await asyncio.gather(*map(checker.complaint, asked))
        assert words is not None
        assert "crashes" in words
        assert sound == [None] * 8
        assert wrong is not None
        assert "strin" in wrong

    assert _run(work).results == {"crashed": 1, "passed": 8, "refused": 1}


def test_grammar_that_times_out_is_refused_alone() -> None:
    async def work(checker: GrammarChecker) -> None:
        words, sound = await asyncio.gather(checker.complaint(_endless()), checker.complaint(_sound()))
        assert words == "compiling it takes longer than 1 s (GENAI_GRAMMAR_TIMEOUT)"
        assert sound is None
        assert await checker.complaint(_sound(1)) is None

    assert _run(work, seconds=1).results == {"timed_out": 1, "passed": 2}


def test_check_is_repeated_when_its_process_is_killed() -> None:
    seen = Seen()

    async def work() -> None:
        async with _checking(seen) as checker:
            assert await checker.complaint(_sound()) is None
            (first,) = seen.processes
            if sys.platform != "win32":
                os.kill(first.pid, signal.SIGSTOP)  # so that the check has started and has not ended
            checking = asyncio.ensure_future(checker.complaint(_sound(1)))
            await asyncio.sleep(0)
            first._process.kill()
            assert await checking is None

    asyncio.run(work())
    assert len(seen.processes) == 2
    assert seen.results == {"passed": 2}


def test_a_process_that_has_died_while_idle_is_replaced() -> None:
    seen = Seen()

    async def work() -> None:
        async with _checking(seen) as checker:
            assert await checker.complaint(_sound()) is None
            seen.processes[0]._process.kill()
            seen.processes[0]._process.wait()
            assert await checker.complaint(_sound(1)) is None

    asyncio.run(work())
    assert len(seen.processes) == 2


def test_first_grammar_starts_the_only_checker_needed() -> None:
    async def work(checker: GrammarChecker) -> None:
        for number in range(5):
            assert await checker.complaint(_sound(number)) is None

    assert len(_run(work).processes) == 1
    assert Seen().processes == []


def test_grammar_is_checked_once_for_all_requests() -> None:
    async def work(checker: GrammarChecker) -> None:
        assert await asyncio.gather(*(checker.complaint(_sound()) for _ in range(9))) == [None] * 9
        assert await checker.complaint(_sound()) is None
        first = await checker.complaint(KILLER)
        assert await checker.complaint(KILLER) == first

    assert _run(work).results == {"passed": 1, "crashed": 1}


def test_abandoned_check_is_skipped_and_can_be_repeated() -> None:
    async def work(checker: GrammarChecker) -> None:
        busy = [asyncio.ensure_future(checker.complaint(_endless(number))) for number in range(2)]
        left = [asyncio.ensure_future(checker.complaint(_sound(number))) for number in range(50)]
        stays = asyncio.ensure_future(checker.complaint(_sound(99)))
        await asyncio.sleep(0)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        assert all(task.cancelled() for task in left)
        assert await stays is None
        assert await checker.complaint(_sound(0)) is None
        assert None not in await asyncio.gather(*busy)

    assert _run(work, seconds=1).results == {"timed_out": 2, "passed": 2}


def test_checker_that_cannot_start_is_unavailable() -> None:
    def start() -> CheckerProcess:
        raise CheckerUnavailable("no")

    async def main() -> None:
        checker = GrammarChecker(1, start=start)
        with pytest.raises(CheckerUnavailable):
            await checker.complaint(_sound())
        checker.close()

    asyncio.run(main())


def test_a_process_that_is_gone_says_how() -> None:
    process = CheckerProcess()
    with pytest.raises(ProcessDied, match="exit status -?[0-9]+"):
        process.check(KILLER, 60)
    assert not process.is_alive
    process = CheckerProcess()
    with pytest.raises(ProcessTimeout):
        process.check(_endless(), 0.2)
    assert not process.is_alive


def test_hang_after_a_few_tokens_is_found_by_following() -> None:
    process = CheckerProcess()
    with pytest.raises(ProcessTimeout):
        process.check(json.dumps({"grammars": [{"lark_grammar": 'start: /x*/ "x"'}]}), 1)


def test_a_process_that_cannot_be_started_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(CheckerUnavailable, match="can be started: No such file"):
        CheckerProcess()
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(CheckerUnavailable, match="does not start: exit status 1"):
        CheckerProcess()
