"""A task that never waits lets others have the loop."""

import asyncio

import pytest

from genai_server.api.generation import loop_share
from genai_server.api.generation.loop_share import LoopShare


class _Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(("step", "turns"), [(0.004, 3), (0.0001, 0), (0.02, 10)])
def test_others_have_their_turn_as_often_as_the_time_says(
    step: float, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _Time()
    monkeypatch.setattr(loop_share, "time", clock)
    taken = 0

    async def other() -> None:
        nonlocal taken
        while True:
            await asyncio.sleep(0)
            taken += 1

    async def work() -> None:
        beside = asyncio.create_task(other())
        await asyncio.sleep(0)  # it begins
        share = LoopShare()
        for _ in range(10):
            clock.now += step
            await share.give_way()
        beside.cancel()

    asyncio.run(work())
    assert taken == turns


def test_a_task_that_was_suspended_has_its_whole_share_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Time()
    monkeypatch.setattr(loop_share, "time", clock)
    turns: list[int] = []

    async def work() -> None:
        share = LoopShare()
        clock.now += 1.0
        share.renew()
        asyncio.get_running_loop().call_soon(turns.append, 1)
        await share.give_way()
        assert turns == []

    asyncio.run(work())
