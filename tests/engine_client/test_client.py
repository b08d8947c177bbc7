"""An API process's end of the connections, with real scripted engines."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import psutil
import pytest

from genai_server.config.sources import load_settings
from genai_server.engine_client.client import EngineAdmin, EngineClient, Router
from genai_server.errors import EngineDied, InvalidField, NoEngineReady, QueueFull, SessionTerminated
from genai_server.messages.admin import (
    CacheReset,
    Call,
    CallFailed,
    CancelRequest,
    ListRequests,
    ProfilePlan,
    RequestList,
    RequestPhase,
    RequestState,
    ResetPrefixCache,
    SetRuntimeOption,
    StartProfile,
)
from genai_server.messages.frames import ErrorInfo
from genai_server.messages.generation_request import FinishReason, GenerationRequest
from genai_server.messages.server_status import NO_SERVER
from genai_server.supervisor.supervisor import Supervisor
from tests.engine_client.received import received_tokens
from tests.running_server import suspended

pytestmark = pytest.mark.anyio
# Takes 25 s, so each test ends it.
ENDLESS = "delay 0.05; count 1000"


@contextmanager
def supervised(**values: str) -> Iterator[Supervisor]:
    """A supervisor with two scripted engines."""
    supervisor = Supervisor(load_settings({"device": "scripted:0,scripted:1", **values}, environ={}, dotenv=None))
    supervisor.start()
    try:
        yield supervisor
    finally:
        supervisor.stop()


@pytest.fixture(scope="module")
def engines() -> Iterator[Supervisor]:
    """Engines that no test changes or kills."""
    with supervised() as supervisor:
        yield supervisor


@pytest.fixture(scope="module")
def narrow_engines() -> Iterator[Supervisor]:
    """Engines with capacity for one running and one waiting request."""
    with supervised(max_batch_size="1", max_queue="1", max_queue_tokens="100") as supervisor:
        yield supervisor


@asynccontextmanager
async def attached(supervisor: Supervisor) -> AsyncIterator[Router]:
    """A router attached to the ready engines of a supervisor."""
    router = Router(["scripted:0", "scripted:1"], supervisor.status)
    running = asyncio.create_task(router.run())
    try:
        await until(lambda: all(engine.is_ready for engine in router.engines.values()))
        yield router
    finally:
        running.cancel()
        await asyncio.wait([running])


@asynccontextmanager
async def own_router(**values: str) -> AsyncIterator[Router]:
    """A router attached to engines of the test alone."""
    with supervised(**values) as supervisor:
        async with attached(supervisor) as router:
            yield router


@pytest.fixture
async def router(engines: Supervisor) -> AsyncIterator[Router]:
    async with attached(engines) as router:
        yield router


@pytest.fixture
async def narrow_router(narrow_engines: Supervisor) -> AsyncIterator[Router]:
    async with attached(narrow_engines) as router:
        yield router


@pytest.fixture
def engine(router: Router) -> EngineClient:
    """One of the engines that no test changes."""
    return router.engines["scripted:0"]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for has no event
        await asyncio.sleep(0.01)


def request(script: str, **fields: Any) -> GenerationRequest:
    values: dict[str, Any] = {"request_id": "r", "max_tokens": 500, "max_length": 1000} | fields
    return GenerationRequest(prompt=list(f"{script}\n\x04".encode()), **values)


def kill(engine: EngineClient) -> None:
    pid = engine.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def read(engine: EngineClient, script: str) -> str:
    (stream,) = await engine.in_flight.submit(request(script))
    tokens = await received_tokens(stream)
    assert stream.reason == FinishReason.STOP
    return bytes(tokens).decode()


async def test_many_requests_at_once_each_get_their_own_answer(engine: EngineClient) -> None:
    answers = await asyncio.gather(*(read(engine, f"count {number}") for number in range(1, 40)))
    assert [answer.rpartition(" ")[2] for answer in answers] == [str(number) for number in range(1, 40)]
    assert engine.work == 0


async def test_closing_a_stream_early_frees_the_engine(engine: EngineClient) -> None:
    (stream,) = await engine.in_flight.submit(request(ENDLESS))
    await anext(stream)
    assert engine.load.running == 1
    stream.close()
    await until(lambda: engine.load.running == 0)
    assert await read(engine, "say next") == "next"


async def test_engine_death_fails_only_its_own_streams() -> None:
    async with own_router() as router:
        victim, other = router.engines["scripted:0"], router.engines["scripted:1"]
        doomed = await victim.in_flight.submit(*(request(ENDLESS) for _ in range(3)))
        (survivor,) = await other.in_flight.submit(request("delay 0.01; count 30"))
        for stream in doomed:
            await anext(stream)
        kill(victim)
        for stream in doomed:
            with pytest.raises(EngineDied, match="scripted:0"):
                await received_tokens(stream)
        assert not victim.is_ready
        with pytest.raises(NoEngineReady):
            await victim.in_flight.submit(request("say x"))
        await received_tokens(survivor)
        assert survivor.reason == FinishReason.STOP
        await until(lambda: victim.is_ready)
        assert await read(victim, "say again") == "again"
        assert victim.status().restarts == 1


async def test_request_without_a_token_moves_to_the_next_engine() -> None:
    async with own_router(max_batch_size="1") as router:
        engine = router.engines["scripted:0"]
        (running,) = await engine.in_flight.submit(request(ENDLESS))
        await anext(running)
        (waiting,) = await engine.in_flight.submit(
            request("say abc", top_logprobs=1, prompt_logprobs=True, max_tokens=2)
        )
        (left,) = await engine.in_flight.submit(request("say x"))
        kill(engine)
        with pytest.raises(EngineDied):
            await received_tokens(running)
        assert engine.work == 2
        left.close()
        assert engine.work == 1
        assert bytes(await received_tokens(waiting)) == b"ab"
        assert [logprob.token for logprob in waiting.prompt_logprobs] == list(b"ay abc\n\x04")
        assert engine.work == 0


async def test_request_that_kills_engines_is_tried_twice() -> None:
    async with own_router() as router:
        engine = router.engines["scripted:0"]
        with pytest.raises(EngineDied):
            await read(engine, "crash at 0")
        await until(lambda: engine.is_ready)
        assert engine.status().restarts == 2
        assert router.engines["scripted:1"].status().restarts == 0


async def test_requests_do_not_wait_for_a_failed_engine() -> None:
    async with own_router(max_restarts="0") as router:
        engine = router.engines["scripted:0"]
        with pytest.raises(EngineDied):
            await read(engine, "crash at 0")
        status = engine.status()
        assert status.state == "failed"
        assert status.error == (
            "given up after 0 restarts in a row (GENAI_MAX_RESTARTS): the engine process died, exit status 70"
        )


def num_free(engine: EngineClient) -> int | None:
    """How many requests the engine would take, by its last report."""
    capacity = engine.load.capacity
    return None if capacity is None else capacity.num_free(engine.load.present, "")


async def test_a_full_engine_is_known_to_be_full_without_asking_it(narrow_router: Router) -> None:
    engine = narrow_router.engines["scripted:0"]
    await until(lambda: num_free(engine) == 2)
    engine.require_capacity(2, [10**6, 100], param="n")
    with pytest.raises(InvalidField, match="n asks for more answers .*, 2 .* given 3"):
        engine.require_capacity(3, param="n")  # however long it would wait
    (running,) = await engine.in_flight.submit(request(ENDLESS))
    await until(lambda: num_free(engine) == 1)
    engine.require_capacity(1, [100], param="n")
    with pytest.raises(QueueFull, match=r"would have 101 tokens .*: GENAI_MAX_QUEUE_TOKENS lets 100 wait"):
        engine.require_capacity(1, [101], param="n")
    (waiting,) = await engine.in_flight.submit(request("say x"))
    await until(lambda: num_free(engine) == 0)
    with pytest.raises(QueueFull, match=r"2 requests are on device scripted:0 already: .* lets 1 run") as full:
        engine.require_capacity(1, param="n")
    assert full.value.retry_after == engine.load.retry_after >= 1
    assert narrow_router.pick(None)[0] is narrow_router.engines["scripted:1"]
    with pytest.raises(QueueFull):
        await engine.in_flight.submit(request("say x"))
    waiting.close()
    await until(lambda: num_free(engine) == 1)
    running.close()


async def test_request_cancelled_before_its_acceptance_is_dropped(engine: EngineClient) -> None:
    (busy,) = await engine.in_flight.submit(request(ENDLESS))
    await anext(busy)
    with suspended(psutil.Process(engine.status().pid)):
        asking = asyncio.ensure_future(engine.in_flight.submit(request(ENDLESS)))
        await asyncio.sleep(0)
        assert engine.work == 2
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert engine.work == 1
    await anext(busy)
    busy.close()
    assert (await engine.admin.ask(ListRequests)).requests == []


async def test_router_picks_the_least_loaded_and_terminated_last(router: Router) -> None:
    first, second = router.engines.values()
    (running,) = await router.pick(None)[0].in_flight.submit(request(ENDLESS))
    assert first.work == 1
    assert router.pick(None)[0] is second
    assert router.pick("scripted:0")[0] is first
    reply = await second.admin.ask(partial(SetRuntimeOption, option="terminate_session", value="1"))
    assert reply.options.terminate_session == "1"
    await until(lambda: second.load.terminated)
    assert router.pick(None)[0] is first
    with pytest.raises(SessionTerminated):
        await router.pick("scripted:1")[0].in_flight.submit(request("say x"))
    with pytest.raises(InvalidField, match="scripted:0, scripted:1"):
        router.pick("cpu")
    running.close()
    await second.admin.ask(partial(SetRuntimeOption, option="terminate_session", value="0"))


async def test_a_connection_that_closes_takes_nothing_more(engine: EngineClient) -> None:
    writer = engine._writer
    assert writer is not None
    writer.close()  # as if the engine had just died, before anything else has run
    with pytest.raises(NoEngineReady):
        await engine.in_flight.submit(request("say x"))
    await until(lambda: engine.is_ready and engine._writer is not writer)
    assert await read(engine, "say x") == "x"


def test_router_without_a_supervisor_is_not_ready() -> None:
    router = Router(["cpu"], lambda: NO_SERVER)
    assert not router.is_ready
    assert router.engines["cpu"].status().state == "stopped"
    with pytest.raises(NoEngineReady):
        router.pick(None)


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
    await asyncio.wait([left])
    operator.receive(RequestList(0, [STATE]))
    operator.receive(RequestList(1, []))
    assert (await stays).requests == []
