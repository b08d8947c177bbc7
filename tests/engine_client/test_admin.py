"""An operator's questions, and which answer is whose, without an engine; with one they are shown by the endpoints."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from genai_server.engine_client.admin import EngineAdmin
from genai_server.errors import InvalidField, NoEngineReady
from genai_server.messages.admin import (
    AdminCall,
    CacheReset,
    CancelRequest,
    ListRequests,
    OpenProfiles,
    RequestList,
    RequestPhase,
    RequestState,
    ResetPrefixCache,
    StartProfile,
)
from genai_server.messages.error import ErrorInfo
from genai_server.profile_plan import ProfilePlan

STATE = RequestState("r1", RequestPhase.DECODE, 0.5, 7, 3, 20)


def asking(test: Callable[[EngineAdmin, list[AdminCall]], Awaitable[None]]) -> None:
    """Run a test on the event loop, with an operator and what it has sent."""

    async def run() -> None:
        sent: list[AdminCall] = []
        await test(EngineAdmin(sent.append), sent)

    asyncio.run(run())


def test_each_question_gets_the_answer_of_its_number_whatever_their_order() -> None:
    async def test(operator: EngineAdmin, sent: list[AdminCall]) -> None:
        slots = asyncio.ensure_future(operator.reset_prefix_cache())
        requests = asyncio.ensure_future(operator.requests())
        ended = asyncio.ensure_future(operator.cancel_request("r1"))
        await asyncio.sleep(0)
        assert sent == [ResetPrefixCache(0), ListRequests(1), CancelRequest(2, "r1")]
        operator.receive(RequestList(2, [STATE]))
        operator.receive(RequestList(1, []))
        operator.receive(CacheReset(0, 5))
        assert (await slots, await requests, await ended) == (5, [], [STATE])

    asking(test)


def test_what_an_engine_refuses_is_raised_with_its_field() -> None:
    async def test(operator: EngineAdmin, sent: list[AdminCall]) -> None:
        plan = ProfilePlan("slow")
        begun = asyncio.ensure_future(operator.start_profile(plan))
        await asyncio.sleep(0)
        assert sent == [StartProfile(0, plan)]
        operator.receive(OpenProfiles(0, error=ErrorInfo("invalid_value", "not this", "prefix")))
        with pytest.raises(InvalidField, match="not this") as raised:
            await begun
        assert raised.value.param == "prefix"

    asking(test)


def test_whoever_waits_hears_that_the_engine_has_gone() -> None:
    async def test(operator: EngineAdmin, sent: list[AdminCall]) -> None:
        waiting = [asyncio.ensure_future(operator.requests()) for _ in range(2)]
        await asyncio.sleep(0)
        operator.lose("it died")
        for one in waiting:
            with pytest.raises(NoEngineReady, match="it died"):
                await one
        operator.receive(RequestList(0, []))  # which nobody waits for any more

    asking(test)


def test_an_answer_that_comes_after_its_asker_has_left_is_dropped() -> None:
    async def test(operator: EngineAdmin, sent: list[AdminCall]) -> None:
        left, stays = asyncio.ensure_future(operator.requests()), asyncio.ensure_future(operator.requests())
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        operator.receive(RequestList(0, [STATE]))
        operator.receive(RequestList(1, []))
        assert await stays == []

    asking(test)
