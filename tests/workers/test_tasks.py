"""Calls that several requests wait for: they run once, and no longer than somebody waits."""

import asyncio
from contextlib import suppress

import pytest

from genai_server.workers.tasks import SharedCalls

pytestmark = pytest.mark.anyio


class Work:
    """Counts how often it was begun and cancelled, and ends when it is told to."""

    def __init__(self) -> None:
        self.num_begun = 0
        self.num_cancelled = 0
        self.may_end = asyncio.Event()

    async def run(self) -> int:
        self.num_begun += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return self.num_begun


async def test_equal_calls_run_once_and_again_later() -> None:
    calls, work = SharedCalls[int](), Work()
    waiting = [asyncio.create_task(calls.run("key", work.run)) for _ in range(5)]
    await asyncio.sleep(0)
    assert "key" in calls
    work.may_end.set()
    assert await asyncio.gather(*waiting) == [1] * 5
    assert "key" not in calls
    assert await calls.run("key", work.run) == 2


async def test_a_call_ends_with_the_last_one_that_waits() -> None:
    calls, work = SharedCalls[int](), Work()
    first, second = (asyncio.create_task(calls.run("key", work.run)) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    assert (work.num_begun, work.num_cancelled) == (1, 0)
    second.cancel()
    with suppress(asyncio.CancelledError):
        await second
    assert "key" not in calls
    await asyncio.sleep(0)
    assert work.num_cancelled == 1


async def test_nobody_joins_a_call_that_was_left_before_it_began() -> None:
    calls, work = SharedCalls[int](), Work()
    calls.join("key", work.run).leave()
    work.may_end.set()
    assert await calls.run("key", work.run) == 1


async def test_all_that_wait_get_the_error() -> None:
    async def fail() -> int:
        raise ValueError("no")

    calls = SharedCalls[int]()
    found = await asyncio.gather(*(calls.run("key", fail) for _ in range(2)), return_exceptions=True)
    assert [str(error) for error in found] == ["no", "no"]
    with pytest.raises(ValueError, match="no"):
        await calls.run("key", fail)
