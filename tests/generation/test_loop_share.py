"""A task that never waits lets other tasks run."""

import asyncio

import pytest

from genai_server.generation import answers
from genai_server.generation.answers import LoopShare


class _Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(("step", "turns"), [(0.004, 3), (0.0001, 0), (0.02, 10)])
def test_other_tasks_run_after_each_time_slice(step: float, turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Time()
    monkeypatch.setattr(answers, "time", clock)
    taken = 0

    async def other() -> None:
        nonlocal taken
        while True:
            await asyncio.sleep(0)
            taken += 1

    async def work() -> None:
        waiting = asyncio.create_task(other())
        await asyncio.sleep(0)  # it starts
        share = LoopShare()
        for _ in range(10):
            clock.now += step
            await share.give_way()
        waiting.cancel()

    asyncio.run(work())
    assert taken == turns


def test_suspended_task_has_its_full_share_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Time()
    monkeypatch.setattr(answers, "time", clock)
    turns: list[int] = []

    async def work() -> None:
        share = LoopShare()
        clock.now += 1.0
        share.renew()
        asyncio.get_running_loop().call_soon(turns.append, 1)
        await share.give_way()
        assert turns == []

    asyncio.run(work())
