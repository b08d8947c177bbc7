"""Calls to an engine and the matching of replies, without an engine; the tests of the endpoints use one."""

import asyncio
from typing import Any

import pytest

from genai_server.engine_client.admin import EngineAdmin
from genai_server.errors import InvalidField, NoEngineReady
from genai_server.messages.admin import (
    CacheReset,
    Call,
    CallFailed,
    CancelRequest,
    ListRequests,
    RequestList,
    RequestPhase,
    RequestState,
    ResetPrefixCache,
    StartProfile,
)
from genai_server.messages.error import ErrorInfo
from genai_server.messages.profile_plan import ProfilePlan

pytestmark = pytest.mark.anyio
STATE = RequestState("r1", RequestPhase.DECODE, 0.5, 7, 3, 20)


@pytest.fixture
def sent() -> list[Call[Any]]:
    """The messages to the engine."""
    return []


@pytest.fixture
def operator(sent: list[Call[Any]]) -> EngineAdmin:
    return EngineAdmin(sent.append)


async def test_replies_are_matched_to_calls_by_number(operator: EngineAdmin, sent: list[Call[Any]]) -> None:
    reset = asyncio.ensure_future(operator.ask(ResetPrefixCache))
    listed = asyncio.ensure_future(operator.ask(ListRequests))
    ended = asyncio.ensure_future(operator.ask(lambda number: CancelRequest(number, "r1")))
    await asyncio.sleep(0)
    assert sent == [ResetPrefixCache(0), ListRequests(1), CancelRequest(2, "r1")]
    replies = RequestList(2, [STATE]), RequestList(1, []), CacheReset(0, 5)
    for reply in replies:
        operator.receive(reply)
    assert (await ended, await listed, await reset) == replies


async def test_engine_error_is_raised_with_its_field(operator: EngineAdmin, sent: list[Call[Any]]) -> None:
    plan = ProfilePlan("slow")
    begun = asyncio.ensure_future(operator.ask(lambda number: StartProfile(number, plan)))
    await asyncio.sleep(0)
    assert sent == [StartProfile(0, plan)]
    operator.receive(CallFailed(0, ErrorInfo("invalid_value", "not this", "prefix")))
    with pytest.raises(InvalidField, match="not this") as raised:
        await begun
    assert raised.value.param == "prefix"


async def test_pending_calls_fail_when_the_engine_is_lost(operator: EngineAdmin) -> None:
    waiting = [asyncio.ensure_future(operator.ask(ListRequests)) for _ in range(2)]
    await asyncio.sleep(0)
    operator.lose("it died")
    for one in waiting:
        with pytest.raises(NoEngineReady, match="it died"):
            await one
    operator.receive(RequestList(0, []))  # the call was abandoned


async def test_reply_to_an_abandoned_call_is_dropped(operator: EngineAdmin) -> None:
    left, stays = (asyncio.ensure_future(operator.ask(ListRequests)) for _ in range(2))
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    operator.receive(RequestList(0, [STATE]))
    operator.receive(RequestList(1, []))
    assert (await stays).requests == []
