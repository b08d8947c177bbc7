"""Requests in flight, without an engine; dying engines are covered by the tests of the client."""

import asyncio
import weakref
from itertools import chain

import msgspec
import pytest

from genai_server.engine_client.in_flight import PATIENCE, InFlight, TokenStream
from genai_server.errors import EngineDied, ModelUnloaded, NoEngineReady, QueueFull
from genai_server.messages.engine_protocol import (
    Accepted,
    Cancel,
    Finished,
    Progress,
    PromptLogprobs,
    Refused,
    Stop,
    Submit,
    ToEngine,
    Tokens,
)
from genai_server.messages.frames import ErrorInfo
from genai_server.messages.generation_request import FinishReason, GenerationRequest, Phases, TokenLogprob
from tests.engine_client.received import received_tokens

pytestmark = pytest.mark.anyio
PHASES = Phases(0.1, 0.2, 0.3)


@pytest.fixture
def stream() -> TokenStream:
    return TokenStream(lambda: None)


def _tokens(tokens: list[int], logprobs: list[TokenLogprob] | None = None) -> Tokens:
    return Tokens(0, tokens, logprobs or [])


async def _until_it_waits() -> None:
    """Let the other tasks run until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)


# tokens


async def test_slow_reader_gets_missed_tokens_at_once_in_order(stream: TokenStream) -> None:
    first, second = _tokens([1]), _tokens([2, 3])
    stream.receive(first)
    stream.receive(second)
    assert await anext(stream) == _tokens([1, 2, 3])
    assert (first, second) == (_tokens([1]), _tokens([2, 3]))
    stream.receive(_tokens([4]))
    assert await anext(stream) == _tokens([4])


async def test_a_waiting_reader_gets_each_batch_as_it_comes(stream: TokenStream) -> None:
    async def read() -> list[Tokens | Progress]:
        return [batch async for batch in stream]

    reading = asyncio.create_task(read())
    for tokens in ([1], [2, 3]):
        await _until_it_waits()
        assert not reading.done()
        stream.receive(_tokens(tokens))
    await _until_it_waits()
    stream.receive(Finished(0, FinishReason.STOP, PHASES))
    assert await reading == [_tokens([1]), _tokens([2, 3])]


async def test_a_reader_that_gave_up_waiting_loses_nothing(stream: TokenStream) -> None:
    waiting = asyncio.ensure_future(anext(stream))
    await _until_it_waits()
    waiting.cancel()
    await _until_it_waits()
    stream.receive(_tokens([1]))
    assert await anext(stream) == _tokens([1])


# log probabilities


async def test_log_probabilities_come_with_their_tokens(stream: TokenStream) -> None:
    one, two = (TokenLogprob(token, -token / 2, [(9, -0.1)]) for token in (1, 2))
    stream.receive(_tokens([1], [one]))
    stream.receive(_tokens([2], [two]))
    assert await anext(stream) == _tokens([1, 2], [one, two])


async def test_prompt_logprobs_are_collected_next_to_the_tokens(stream: TokenStream) -> None:
    read = [TokenLogprob(token, -0.5) for token in range(3)]
    stream.receive(PromptLogprobs(0, read[:2]))
    stream.receive(PromptLogprobs(0, read[2:]))
    stream.receive(_tokens([1]))
    assert await anext(stream) == _tokens([1])
    assert stream.prompt_logprobs == read


# the end


async def test_the_end_comes_after_the_tokens_and_stays(stream: TokenStream) -> None:
    stream.receive(_tokens([1]))
    stream.receive(Finished(0, FinishReason.LENGTH, PHASES))
    assert [batch async for batch in stream] == [_tokens([1])]
    assert [batch async for batch in stream] == []
    assert (stream.reason, stream.phases, stream.is_ended) == (FinishReason.LENGTH, PHASES, True)


async def test_an_error_comes_after_acceptance_and_tokens_and_stays(stream: TokenStream) -> None:
    stream.receive(Accepted(0))
    stream.receive(_tokens([1]))
    stream.fail(EngineDied("gone"))
    assert stream.is_ended
    await stream.accepted()
    assert await anext(stream) == _tokens([1])
    for _ in range(2):
        with pytest.raises(EngineDied, match="gone"):
            await anext(stream)
    assert stream.reason is None


async def test_an_error_wakes_a_waiting_reader(stream: TokenStream) -> None:
    waiting = asyncio.ensure_future(anext(stream))
    await _until_it_waits()
    stream.fail(EngineDied("gone"))
    with pytest.raises(EngineDied):
        await waiting


async def test_nothing_follows_a_complete_end_or_an_error(stream: TokenStream) -> None:
    failed = TokenStream(lambda: None)
    stream.receive(Finished(0, FinishReason.STOP, PHASES))
    failed.fail(EngineDied("first"))
    for each in (stream, failed):
        each.fail(EngineDied("second"))
        each.receive(Finished(0, FinishReason.LENGTH, Phases()))
    assert [batch async for batch in stream] == []
    assert (stream.reason, stream.phases, failed.reason) == (FinishReason.STOP, PHASES, None)
    with pytest.raises(EngineDied, match="first"):
        await anext(failed)


# progress


async def test_progress_of_a_prompt_that_is_read_again_never_falls(stream: TokenStream) -> None:
    seen = []
    for num_read in (8, 16, 0, 8, 24):
        stream.receive(Progress(0, num_read, 4))
        seen += [stream.take()] if stream.has_items else []
    assert seen == [Progress(0, num_read, 4) for num_read in (8, 16, 24)]


async def test_progress_precedes_tokens_and_only_the_last_is_kept(stream: TokenStream) -> None:
    stream.receive(Progress(0, 8, 4))
    stream.receive(Progress(0, 16, 4))
    stream.receive(_tokens([1, 2]))
    stream.receive(Finished(0, FinishReason.STOP, Phases()))
    assert [batch async for batch in stream] == [Progress(0, 16, 4), _tokens([1, 2])]


REQUEST = GenerationRequest("r", [1, 2], 5, 9)
DEATH = EngineDied("it died")


@pytest.fixture
def sent() -> list[ToEngine]:
    """The messages to the engine."""
    return []


@pytest.fixture
def flight(sent: list[ToEngine]) -> InFlight:
    return InFlight(lambda *messages: sent.extend(messages))


async def asked(flight: InFlight, *requests: GenerationRequest) -> "asyncio.Future[list[TokenStream]]":
    """A submission that waits for the engine's replies."""
    asking = asyncio.ensure_future(flight.submit(*requests))
    await asyncio.sleep(0)
    return asking


async def submitted(flight: InFlight, key: int, request: GenerationRequest = REQUEST) -> TokenStream:
    """A request that the engine accepted, with the key that it will have."""
    asking = await asked(flight, request)
    flight.receive(Accepted(key))
    return (await asking)[0]


async def test_each_request_receives_its_own_messages_until_its_end(flight: InFlight, sent: list[ToEngine]) -> None:
    first, second = await submitted(flight, 0), await submitted(flight, 1)
    assert sent == [Submit(0, REQUEST), Submit(1, REQUEST)]
    flight.receive(Tokens(1, [7]))
    flight.receive(Tokens(0, [5]))
    flight.receive(Finished(0, FinishReason.STOP, Phases(), num_cached=2))
    assert len(flight) == 1
    assert await received_tokens(first) == [5]
    assert (first.reason, first.finished.num_cached) == (FinishReason.STOP, 2)
    flight.receive(Finished(1, FinishReason.LENGTH, Phases()))
    assert await received_tokens(second) == [7]
    assert len(flight) == 0


async def test_a_refusal_is_raised_and_leaves_nothing_behind(flight: InFlight, sent: list[ToEngine]) -> None:
    asking = await asked(flight, REQUEST)
    flight.receive(Refused(0, ErrorInfo("queue_full", "no room", retry_after=17)))
    with pytest.raises(QueueFull, match="no room") as raised:
        await asking
    assert raised.value.retry_after == 17
    assert len(flight) == 0
    assert sent == [Submit(0, REQUEST)]


@pytest.mark.parametrize("refused", [0, 1, 2])
async def test_refused_request_cancels_its_group(flight: InFlight, sent: list[ToEngine], refused: int) -> None:
    asking = await asked(flight, REQUEST, REQUEST, REQUEST)
    others = [key for key in range(3) if key != refused]
    for key in others:
        flight.receive(Accepted(key))
    flight.receive(Refused(refused, ErrorInfo("queue_full", "no room")))
    with pytest.raises(QueueFull):
        await asking
    assert sent[3:] == [Cancel(key) for key in others]
    assert len(flight) == 0


async def test_group_is_submitted_before_any_reply(flight: InFlight, sent: list[ToEngine]) -> None:
    asking = await asked(flight, REQUEST, REQUEST, REQUEST)
    assert sent == [Submit(0, REQUEST, more=True), Submit(1, REQUEST, more=True), Submit(2, REQUEST)]
    for key in (2, 0, 1):
        assert not asking.done()
        flight.receive(Accepted(key))
    streams = await asking
    flight.receive(Tokens(2, [7]))
    flight.receive(Finished(2, FinishReason.STOP, Phases()))
    assert await received_tokens(streams[2]) == [7]


async def test_closed_stream_cancels_once_and_receives_nothing(flight: InFlight, sent: list[ToEngine]) -> None:
    stream = await submitted(flight, 0)
    stream.close()
    stream.close()
    flight.receive(Tokens(0, [5]))
    assert sent == [Submit(0, REQUEST), Cancel(0)]
    assert len(flight) == 0


async def test_a_reader_that_has_enough_stops_and_waits_for_the_end(flight: InFlight, sent: list[ToEngine]) -> None:
    stream = await submitted(flight, 0)
    stopping = asyncio.ensure_future(stream.stop())
    await asyncio.sleep(0)
    assert sent[1:] == [Stop(0)]
    flight.receive(Finished(0, FinishReason.STOP, Phases()))
    await stopping
    assert len(flight) == 0


async def test_only_untouched_requests_are_resubmitted_once(flight: InFlight, sent: list[ToEngine]) -> None:
    untouched, begun = await submitted(flight, 0), await submitted(flight, 1)
    flight.receive(Tokens(1, [7]))
    flight.lose(DEATH)
    assert len(flight) == 1
    flight.resume()
    again = sent[-1]
    assert isinstance(again, Submit)
    assert (again.key, again.request.prompt) == (0, REQUEST.prompt)
    flight.lose(DEATH)
    assert len(flight) == 0
    for stream in (untouched, begun):
        with pytest.raises(EngineDied, match="it died"):
            await received_tokens(stream)


async def test_nothing_waits_for_a_model_that_was_unloaded(flight: InFlight) -> None:
    stream = await submitted(flight, 0)
    flight.lose(ModelUnloaded("the model m was unloaded"))
    assert len(flight) == 0
    with pytest.raises(ModelUnloaded):
        await received_tokens(stream)


async def test_resubmission_can_be_abandoned(flight: InFlight) -> None:
    stream = await submitted(flight, 0)
    flight.lose(DEATH)
    flight.give_up(DEATH, all=False)
    assert len(flight) == 1
    flight.give_up(DEATH, all=True)
    with pytest.raises(EngineDied):
        await received_tokens(stream)
    assert len(flight) == 0


# connections that end during a send


class Connection:
    """A connection that accepts a limited number of calls of `send`, and then is closing."""

    def __init__(self, num_calls: int) -> None:
        self.num_calls = num_calls
        self.sent: list[ToEngine] = []

    def send(self, *messages: ToEngine) -> None:
        if not self.num_calls:
            raise NoEngineReady("its engine is not running")
        self.num_calls -= 1
        self.sent += messages

    def submits(self) -> list[tuple[int, bool]]:
        """The requests sent over it: their keys, and whether more of the same group follow."""
        return [(message.key, message.more) for message in self.sent if isinstance(message, Submit)]


@pytest.mark.parametrize("num_answers", [1, 2, 5])
async def test_a_submit_without_a_connection_leaves_nothing_behind(num_answers: int) -> None:
    connection = Connection(0)
    flight = InFlight(connection.send)
    with pytest.raises(NoEngineReady):
        await flight.submit(*[REQUEST] * num_answers)
    assert len(flight) == 0
    flight.lose(DEATH)
    connection.num_calls = 9
    flight.resume()
    assert connection.sent == []


async def test_cancellation_before_acceptance_cancels_the_group(flight: InFlight, sent: list[ToEngine]) -> None:
    asking = await asked(flight, REQUEST, REQUEST)
    flight.receive(Accepted(0))
    asking.cancel()
    await asyncio.wait([asking])
    assert sent[2:] == [Cancel(0), Cancel(1)]
    assert len(flight) == 0


async def test_a_cancelled_group_is_forgotten_without_a_connection() -> None:
    flight = InFlight(Connection(1).send)
    asking = await asked(flight, *[REQUEST] * 3)
    asking.cancel()
    await asyncio.wait([asking])
    assert len(flight) == 0


async def test_a_stopped_answer_is_complete_without_a_connection() -> None:
    connection = Connection(1)
    flight = InFlight(connection.send)
    stream = await submitted(flight, 0)
    flight.receive(Tokens(0, [7]))
    stopping = asyncio.ensure_future(stream.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    flight.lose(DEATH)
    await stopping


@pytest.mark.parametrize("num_sent", [0, 1, 2])
async def test_requests_of_a_failed_resume_wait_for_the_next_engine(num_sent: int) -> None:
    connection = Connection(3)
    flight = InFlight(connection.send)
    asking = [asyncio.ensure_future(flight.submit(*[REQUEST] * size)) for size in (1, 2, 1)]
    await asyncio.sleep(0)
    groups = [[(0, False)], [(1, True), (2, False)], [(3, False)]]
    assert connection.submits() == list(chain(*groups))
    flight.lose(DEATH)
    connection.sent, connection.num_calls = [], num_sent
    with pytest.raises(NoEngineReady):
        flight.resume()
    assert connection.submits() == list(chain(*groups[:num_sent]))
    assert len(flight) == 4
    flight.lose(DEATH)
    for task in asking[:num_sent]:
        with pytest.raises(EngineDied):
            await task
    connection.sent, connection.num_calls = [], 3
    flight.resume()
    assert connection.submits() == list(chain(*groups[num_sent:]))
    for key, _ in connection.submits():
        flight.receive(Accepted(key))
    await asyncio.gather(*asking[num_sent:])


async def test_a_group_is_resumed_without_answers_that_were_closed() -> None:
    connection = Connection(9)
    flight = InFlight(connection.send)
    asking = await asked(flight, *[REQUEST] * 3)
    for key in range(3):
        flight.receive(Accepted(key))
    streams = await asking
    flight.lose(DEATH)
    streams[2].close()
    connection.sent = []
    flight.resume()
    assert connection.submits() == [(0, True), (1, False)]


# waiting for the next engine


class TimedFlight(InFlight):
    """Requests in flight on a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[ToEngine] = []
        super().__init__(lambda *messages: self.sent.extend(messages), lambda: self.now)

    def resumed(self) -> list[ToEngine]:
        """The messages to the next engine."""
        self.sent.clear()
        self.resume()
        return self.sent


async def test_a_deadline_goes_on_while_a_request_waits() -> None:
    flight, timed = TimedFlight(), msgspec.structs.replace(REQUEST, timeout=5.0)
    waiting = await submitted(flight, 0, timed)
    flight.lose(DEATH)
    flight.now = 2.0
    (again,) = flight.resumed()
    assert isinstance(again, Submit)
    assert again.request.timeout == pytest.approx(3.0, abs=0.5)
    waiting.close()
    late = await submitted(flight, 1, timed)
    flight.lose(DEATH)
    flight.now = 7.5
    flight.give_up(EngineDied("lost"), all=False)
    assert len(flight) == 0
    await late.accepted()
    with pytest.raises(StopAsyncIteration):
        await anext(late)
    assert late.reason is FinishReason.TIMEOUT


async def test_request_fails_after_its_patience_only() -> None:
    flight = TimedFlight()
    late = await submitted(flight, 0)
    flight.lose(DEATH)
    flight.now = 1.0
    await submitted(flight, 1)
    flight.lose(DEATH)
    flight.now = PATIENCE - 0.5
    flight.give_up(EngineDied("lost"), all=False)
    assert len(flight) == 2
    flight.now = PATIENCE
    flight.give_up(EngineDied("lost"), all=False)
    with pytest.raises(EngineDied, match="lost"):
        await anext(late)
    assert [again.key for again in flight.resumed() if isinstance(again, Submit)] == [1]


async def test_request_with_its_end_is_not_kept(flight: InFlight) -> None:
    ended = await submitted(flight, 0)
    ended.fail(EngineDied("x"))
    flight.lose(DEATH)
    assert len(flight) == 0


class _File:
    """An object with a file that the engine reads."""


async def test_files_are_kept_until_each_answer_has_a_token(flight: InFlight) -> None:
    file = _File()
    kept = weakref.ref(file)
    asking = asyncio.ensure_future(flight.submit(REQUEST, REQUEST, files=[file]))
    del file
    await asyncio.sleep(0)
    flight.receive(Accepted(0))
    flight.receive(Accepted(1))
    streams = await asking
    del asking
    flight.receive(Tokens(0, [5]))
    assert kept() is not None
    flight.receive(Tokens(1, [5]))
    assert kept() is None
    assert [stream.is_ended for stream in streams] == [False, False]


@pytest.mark.parametrize("end", ["finish", "fail", "close"])
async def test_files_of_an_answer_without_a_token_are_kept_to_its_end(flight: InFlight, end: str) -> None:
    file = _File()
    kept = weakref.ref(file)
    asking = asyncio.ensure_future(flight.submit(REQUEST, files=[file]))
    del file
    await asyncio.sleep(0)
    flight.receive(Accepted(0))
    (stream,) = await asking
    del asking
    flight.lose(DEATH)
    assert kept() is not None  # the next engine reads them
    flight.resume()
    assert kept() is not None
    match end:
        case "finish":
            flight.receive(Finished(0, FinishReason.STOP, Phases()))
        case "fail":
            flight.lose(DEATH)
        case _:
            stream.close()
    assert kept() is None
