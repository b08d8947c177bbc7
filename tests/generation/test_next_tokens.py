"""How many prompts of one request an engine has at a time."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from genai_server.engine_client.stream import TokenStream
from genai_server.errors import RunnerFailed
from genai_server.generation.dependencies import Deadline, RequestContext
from genai_server.generation.next_tokens import NextTokens, NextTokenScorer
from genai_server.generation.parameters.base import ResultFields
from genai_server.generation.prompts import EncodedPrompt
from genai_server.http.leniency import Leniency
from genai_server.http.request_state import begin_request, request_state
from genai_server.messages.error import ErrorInfo
from genai_server.messages.generation_request import FinishReason, GenerationRequest, Phases, TokenLogprob
from genai_server.messages.protocol import Accepted, Failed, Finished, Tokens
from tests.hand_clock import HandClock

SLOTS, LOGPROB = 16, -0.5
HEAD = EncodedPrompt([1, 2, 3])


class Fields(ResultFields):
    cache_salt: str | None = None


class Engine:
    """Has as many requests of others as a test says, and answers one of the scorer's at a time."""

    def __init__(self, num_others: int) -> None:
        self.in_flight = self
        self.is_connected = True
        self.batching = SimpleNamespace(num_slots=SLOTS)
        self.num_others = num_others
        self.streams: list[TokenStream] = []
        self.most = 0

    @property
    def work(self) -> int:
        return self.num_others + len(self.streams)

    def require_capacity(self, *_: Any, **__: Any) -> None:
        pass

    async def submit(self, request: GenerationRequest) -> list[TokenStream]:
        stream = TokenStream(lambda: None)
        stream.receive(Accepted(0))
        self.streams.append(stream)
        self.most = max(self.most, len(self.streams))
        return [stream]

    def answer(self) -> None:
        stream = self.streams.pop(0)
        stream.receive(Tokens(0, [7], [TokenLogprob(7, 0.0, [(9, LOGPROB)])]))
        stream.receive(Finished(0, FinishReason.LENGTH, Phases(), num_cached=0))

    def fail(self) -> None:
        self.streams.pop(0).receive(Failed(0, ErrorInfo.from_error(RunnerFailed("the pass failed"))))


@pytest.fixture
def context(clock: HandClock) -> RequestContext:
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "headers": [], "state": {}}
    begin_request(scope, clock=clock)

    async def receive() -> Any:
        raise AssertionError

    return RequestContext(Deadline(60, clock), receive, request_state(scope).record, Leniency())


def scorer_of(engine: Engine, context: RequestContext) -> NextTokenScorer:
    services: Any = SimpleNamespace(settings=SimpleNamespace(exact=False))
    chosen, model = SimpleNamespace(adapter=None), SimpleNamespace(max_length=100)
    choice: Any = (chosen, None, engine, model, None)
    return NextTokenScorer(services, context, choice, Fields.model_validate({}), param="questions")


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.anyio
@pytest.mark.parametrize(("num_others", "most"), [(0, SLOTS), (1, 2), (5, 5), (100, SLOTS)])
async def test_next_to_others_there_are_no_more_than_these(context: RequestContext, num_others: int, most: int) -> None:
    engine = Engine(num_others)
    asked = [NextTokens(HEAD, [n], [9], 3 if n else 0) for n in range(40)]
    running = asyncio.ensure_future(scorer_of(engine, context).run(asked))
    await settled()
    assert len(engine.streams) == 1  # the first is read alone
    while not running.done():
        engine.answer()
        await settled()
    assert (engine.most, running.result()) == (most, [{9: LOGPROB}] * 40)


@pytest.mark.anyio
async def test_those_that_come_later_make_them_fewer(context: RequestContext) -> None:
    engine = Engine(0)
    running = asyncio.ensure_future(scorer_of(engine, context).run([NextTokens(HEAD, [], [9])] * 40))
    await settled()
    engine.answer()
    await settled()
    assert len(engine.streams) == SLOTS
    engine.num_others = 3
    for _ in range(SLOTS):
        engine.answer()
        await settled()
    assert len(engine.streams) == 3
    running.cancel()


@pytest.mark.anyio
async def test_a_prompt_that_fails_costs_no_other_one(context: RequestContext) -> None:
    engine = Engine(0)
    running = asyncio.ensure_future(scorer_of(engine, context).run([NextTokens(HEAD, [], [9])] * 3))
    await settled()
    engine.answer()
    await settled()
    engine.fail()
    engine.answer()
    first, second, third = await running
    assert (first, third) == ({9: LOGPROB}, {9: LOGPROB})
    assert isinstance(second, RunnerFailed)
