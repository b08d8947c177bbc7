"""What waits for the next engine; how it gets there is shown with the client."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from genai_server.engine_client.retry import PATIENCE, Retries
from genai_server.engine_client.stream import TokenStream
from genai_server.errors import EngineDied
from genai_server.generation import FinishReason, GenerationRequest

REQUEST = GenerationRequest("r", [1, 2], 5, 9)


def on_a_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    asyncio.run(run())


def stream() -> TokenStream:
    return TokenStream(lambda: None, request=REQUEST)


def test_a_request_is_kept_once() -> None:
    async def test() -> None:
        retries, waiting = Retries(), stream()
        assert retries.keep(1, waiting)
        assert [(key, retry.request, retry.stream) for key, retry in retries.take().items()] == [(1, REQUEST, waiting)]
        assert not retries.keep(1, waiting)
        assert len(retries) == 0

    on_a_loop(test)


def test_a_request_with_a_token_or_with_its_end_is_not_kept() -> None:
    async def test() -> None:
        begun, ended = stream(), stream()
        begun.deliver([5])
        ended.fail(EngineDied("x"))
        retries = Retries()
        assert not retries.keep(1, begun)
        assert not retries.keep(2, ended)

    on_a_loop(test)


def test_a_deadline_goes_on_while_a_request_waits() -> None:
    async def test() -> None:
        times = iter([0.0, 2.0, 2.0, 7.5])
        retries = Retries(clock=lambda: next(times))
        timed = msgspec.structs.replace(REQUEST, timeout=5.0)
        waiting, late = (TokenStream(lambda: None, request=timed) for _ in range(2))
        retries.keep(1, waiting)
        (retry,) = retries.take().values()
        assert retry.request.timeout == pytest.approx(3.0, abs=0.5)
        retries.keep(2, late)
        retries.fail(EngineDied("lost"), all=False)
        assert len(retries) == 0
        await late.accepted()
        with pytest.raises(StopAsyncIteration):
            await anext(late)
        assert late.reason is FinishReason.TIMEOUT

    on_a_loop(test)


def test_who_waits_too_long_fails_and_no_others() -> None:
    async def test() -> None:
        times = iter([0.0, PATIENCE - 1, PATIENCE - 1, PATIENCE, PATIENCE])
        retries, late, early = Retries(clock=lambda: next(times)), stream(), stream()
        retries.keep(1, late)
        retries.keep(2, early)
        retries.fail(EngineDied("lost"), all=False)
        assert len(retries) == 2
        retries.fail(EngineDied("lost"), all=False)
        with pytest.raises(EngineDied, match="lost"):
            await anext(late)
        assert list(retries.take()) == [2]

    on_a_loop(test)


def test_all_fail_when_no_engine_will_come() -> None:
    async def test() -> None:
        retries, waiting = Retries(), stream()
        retries.keep(1, waiting)
        retries.fail(EngineDied("lost"), all=True)
        assert waiting.is_ended
        assert len(retries) == 0

    on_a_loop(test)
