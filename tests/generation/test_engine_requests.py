"""The engine requests of an HTTP request: their order, their ends, and the sums of their figures."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

from genai_server.engine_client.in_flight import TokenStream
from genai_server.errors import (
    DeadlinePassed,
    EngineDied,
    GenaiServerError,
    InvalidField,
    QueueFull,
    RequestCancelled,
    SessionTerminated,
)
from genai_server.generation.dependencies import RequestContext
from genai_server.generation.engine_requests import EngineRequests
from genai_server.messages.engine_protocol import Accepted, Finished, Tokens
from genai_server.messages.generation_request import AudioInput, FinishReason, GenerationRequest, Phases, TokenLogprob
from tests.hand_clock import HandClock

pytestmark = pytest.mark.anyio

REQUEST = GenerationRequest("name", [1, 2, 3], 5, 10)


class Engine:
    """Accepts requests, or refuses them with the given errors, and feeds their streams."""

    def __init__(self, *refusals: GenaiServerError, feed: Callable[[TokenStream], None]) -> None:
        self.in_flight = self
        self.is_connected = True
        self.asked: list[GenerationRequest] = []
        self.left = 0
        self._refusals = list(refusals)
        self._feed = feed

    def require_capacity(self, *_: Any, **__: Any) -> None:
        pass

    async def submit(self, request: GenerationRequest) -> list[TokenStream]:
        self.asked.append(request)
        if self._refusals:
            raise self._refusals.pop(0)
        stream = TokenStream(self._leave)
        stream.receive(Accepted(0))
        self._feed(stream)
        return [stream]

    def _leave(self) -> None:
        self.left += 1


def fed(reason: FinishReason = FinishReason.STOP) -> Callable[[TokenStream], None]:
    def feed(stream: TokenStream) -> None:
        for token in (7, 8):
            stream.receive(Tokens(0, [token], [TokenLogprob(token, -0.5)]))
        stream.receive(Finished(0, reason, Phases(0.5, 1.0, 2.0), num_cached=2))

    return feed


def requests_to(engine: Engine, context: RequestContext) -> EngineRequests:
    return requests_to_each([engine], context)


def requests_to_each(engines: Sequence[Engine], context: RequestContext) -> EngineRequests:
    """The last engine is chosen again and again."""
    waiting = list(engines)

    async def pick() -> Any:
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    return EngineRequests(context, pick, param="file")


async def test_figures_are_the_sums_of_all_requests(context: RequestContext, clock: HandClock) -> None:
    engine = Engine(feed=fed())
    requests = requests_to(engine, context)
    assert (requests.usage.prompt, list(context.record.answers)) == (0, [])
    for _ in range(2):
        clock.now += 3.0
        answer = await requests.run(REQUEST)
        assert answer.tokens == [7, 8]
        assert [each.logprob for each in answer.logprobs] == [-0.5, -0.5]
    (figures,) = context.record.answers
    assert figures.outcome == "abort"
    requests.finish()
    assert figures.outcome == "stop"
    assert (figures.usage.prompt, figures.usage.completion, figures.usage.cached) == (6, 4, 4)
    times = figures.timings()
    assert times.ttft == 3.0
    assert times.total_latency == 6.0
    assert times.breakdown is not None
    assert (times.breakdown.queue, times.breakdown.prefill) == (0.5, 1.0)
    # The engine was at work for two more seconds, and for all of the second request.
    assert times.breakdown.decode == 3.0


async def test_what_an_earlier_request_counts_counts_once(context: RequestContext) -> None:
    engine = Engine(feed=fed())
    requests = EngineRequests(context, requests_to(engine, context)._pick, param="questions", generates=False)
    await asyncio.gather(requests.run(REQUEST), requests.run(REQUEST, num_counted=1))
    assert (requests.usage.prompt, requests.usage.completion, requests.usage.cached) == (5, 0, 3)


async def test_all_requests_that_run_are_cancelled(context: RequestContext) -> None:
    engine = Engine(feed=lambda stream: None)
    requests = requests_to(engine, context)
    running = [asyncio.ensure_future(requests.run(REQUEST)) for _ in range(2)]
    await requests.accepted.wait()
    await asyncio.sleep(0)
    requests.close()
    assert engine.left == 2
    for one in running:
        one.cancel()


async def test_each_request_has_the_time_that_is_left(context: RequestContext, clock: HandClock) -> None:
    engine = Engine(feed=fed())
    requests = requests_to(engine, context)
    await requests.run(REQUEST)
    clock.now += 25.0
    await requests.run(REQUEST)
    assert [request.timeout for request in engine.asked] == [60.0, 35.0]


async def test_requests_for_a_window_go_to_one_engine(context: RequestContext) -> None:
    engines = [Engine(feed=fed()) for _ in range(3)]
    requests = requests_to_each(engines, context)
    first, second = (structs.replace(REQUEST, sound=AudioInput(digest, "a.npz")) for digest in ("a", "b"))
    for request in (first, first, second):
        await requests.run(request)
    engines[1].is_connected = False
    await requests.run(second)
    assert [len(engine.asked) for engine in engines] == [2, 1, 1]


async def test_a_full_queue_refuses_only_the_first_request(
    context: RequestContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("genai_server.generation.engine_requests.asyncio.sleep", sleep)
    with pytest.raises(QueueFull):
        await requests_to(Engine(QueueFull("full"), feed=fed()), context).run(REQUEST)
    assert not context.record.answers
    engine = Engine(feed=fed())
    requests = requests_to(engine, context)
    await requests.run(REQUEST)
    engine._refusals = [QueueFull("full", retry_after=4), QueueFull("full")]
    assert (await requests.run(REQUEST)).tokens == [7, 8]
    assert slept == [4, 1]


async def test_waiting_for_the_queue_ends_at_the_deadline(
    context: RequestContext, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr("genai_server.generation.engine_requests.asyncio.sleep", sleep)
    engine = Engine(feed=fed())
    requests = requests_to(engine, context)
    await requests.run(REQUEST)
    engine._refusals = [QueueFull("full", retry_after=40) for _ in range(9)]
    with pytest.raises(DeadlinePassed, match="did not finish within 60 s"):
        await requests.run(REQUEST)
    assert context.record.answers[0].outcome == "timeout"


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (FinishReason.TIMEOUT, DeadlinePassed),
        (FinishReason.TERMINATED, SessionTerminated),
        (FinishReason.CANCELLED, RequestCancelled),
    ],
)
async def test_a_request_that_is_ended_ends_the_transcription(
    context: RequestContext, reason: FinishReason, error: type[GenaiServerError]
) -> None:
    requests = requests_to(Engine(feed=fed(reason)), context)
    with pytest.raises(error):
        await requests.run(REQUEST)
    assert context.record.answers[0].outcome == error.code


async def test_the_loss_of_the_engine_is_the_outcome(context: RequestContext) -> None:
    engine = Engine(feed=lambda stream: stream.fail(EngineDied("gone")))
    with pytest.raises(EngineDied):
        await requests_to(engine, context).run(REQUEST)
    assert context.record.answers[0].outcome == "engine_died"
    assert engine.left == 1


async def test_an_error_between_requests_is_the_outcome(context: RequestContext) -> None:
    requests = requests_to(Engine(feed=fed()), context)
    await requests.run(REQUEST)
    with pytest.raises(InvalidField), requests.recording_errors():
        raise InvalidField("file", "is wrong")
    assert context.record.answers[0].outcome == "invalid_value"
