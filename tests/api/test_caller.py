"""How long an answer is waited for, and what happens when nobody waits any more."""

import asyncio
from typing import Any

import pytest

from genai_server.api.caller import ClientLeft, Deadline, while_there
from genai_server.errors import InvalidField, ServerStopping
from tests.engine.test_sequence import HandClock


def test_without_another_word_the_operators_limit_holds_from_the_arrival_on() -> None:
    clock = HandClock()
    deadline = Deadline(600, clock)
    clock.wait(20)
    assert deadline.seconds_left == 580
    clock.wait(600)
    assert deadline.seconds_left == 0


@pytest.mark.parametrize("order", [(5.0, 2.5), (2.5, 5.0)])
def test_the_sooner_of_two_counts(order: tuple[float, float]) -> None:
    clock = HandClock()
    deadline = Deadline(600, clock)
    clock.wait(1)
    for seconds in order:
        deadline.tighten(seconds, param="timeout")
    assert deadline.seconds_left == 1.5


@pytest.mark.parametrize("seconds", [0.0, -1.0, 600.5, float("inf"), float("nan")])
def test_what_is_beyond_the_limit_or_no_time_is_refused_by_its_name(seconds: float) -> None:
    with pytest.raises(InvalidField, match=r"at most 600 seconds \(GENAI_REQUEST_TIMEOUT\), given") as wrong:
        Deadline(600, HandClock()).tighten(seconds, param="timeout")
    assert wrong.value.param == "timeout"


class Work:
    """Waits for `go`, and says whether it was ended before."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()

    async def run(self) -> str:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.set()
            raise
        return "done"


async def _silence() -> Any:
    await asyncio.Event().wait()


def test_the_work_of_a_client_that_stays_gives_what_it_gives() -> None:
    async def run() -> str:
        work = Work()
        work.go.set()
        return await while_there(_silence, work.run())

    assert asyncio.run(run()) == "done"


def test_the_work_of_a_client_that_leaves_is_ended() -> None:
    async def run() -> None:
        work = Work()

        async def leave() -> Any:
            await work.begun.wait()
            return {"type": "http.disconnect"}

        with pytest.raises(ClientLeft):
            await while_there(leave, work.run())
        await asyncio.wait_for(work.ended.wait(), 10)

    asyncio.run(run())


def test_a_server_that_stops_says_so_and_ends_the_work() -> None:
    async def run() -> None:
        work = Work()
        waiting = asyncio.ensure_future(while_there(_silence, work.run()))
        await work.begun.wait()
        waiting.cancel()
        with pytest.raises(ServerStopping):
            await waiting
        await asyncio.wait_for(work.ended.wait(), 10)

    asyncio.run(run())
