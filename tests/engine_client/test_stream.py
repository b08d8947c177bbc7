"""The end of a request in the API process: order, exactly one end, and the cancellation when a reader leaves."""

import asyncio

import pytest

from genai_server.engine_client.stream import TokenStream
from genai_server.errors import EngineDied
from genai_server.messages.engine_protocol import Accepted, Finished, Progress, PromptLogprobs, Tokens
from genai_server.messages.generation_request import FinishReason, Phases, TokenLogprob

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
    stream.receive(_tokens([1]))
    stream.receive(_tokens([2, 3]))
    assert await anext(stream) == _tokens([1, 2, 3])
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


async def test_merging_leaves_the_messages_unchanged(stream: TokenStream) -> None:
    first, second = _tokens([1]), _tokens([2])
    stream.receive(first)
    stream.receive(second)
    assert await anext(stream) == _tokens([1, 2])
    assert (first, second) == (_tokens([1]), _tokens([2]))


async def test_a_reader_that_gave_up_waiting_loses_nothing(stream: TokenStream) -> None:
    waiting = asyncio.ensure_future(anext(stream))
    await _until_it_waits()
    waiting.cancel()
    await _until_it_waits()
    stream.receive(_tokens([1]))
    assert await anext(stream) == _tokens([1])


# log probabilities


async def test_log_probabilities_come_with_their_tokens(stream: TokenStream) -> None:
    one, two, three = (TokenLogprob(token, -token / 2, [(9, -0.1)]) for token in (1, 2, 3))
    stream.receive(_tokens([1], [one]))
    stream.receive(_tokens([2], [two]))
    assert await anext(stream) == _tokens([1, 2], [one, two])
    stream.receive(_tokens([3], [three]))
    assert await anext(stream) == _tokens([3], [three])


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


async def test_an_error_comes_after_the_tokens_and_stays(stream: TokenStream) -> None:
    stream.receive(_tokens([1]))
    stream.fail(EngineDied("gone"))
    assert stream.is_ended
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


async def test_nothing_follows_a_complete_end(stream: TokenStream) -> None:
    stream.receive(Finished(0, FinishReason.STOP, PHASES))
    stream.fail(EngineDied("gone"))
    stream.receive(Finished(0, FinishReason.LENGTH, Phases()))
    assert [batch async for batch in stream] == []
    assert (stream.reason, stream.phases) == (FinishReason.STOP, PHASES)


async def test_nothing_follows_an_error(stream: TokenStream) -> None:
    stream.fail(EngineDied("first"))
    stream.fail(EngineDied("second"))
    stream.receive(Finished(0, FinishReason.STOP, PHASES))
    assert stream.reason is None
    with pytest.raises(EngineDied, match="first"):
        await anext(stream)


async def test_request_that_failed_at_once_was_still_accepted(stream: TokenStream) -> None:
    stream.receive(Accepted(0))
    stream.receive(_tokens([1]))
    stream.fail(EngineDied("gone"))
    await stream.accepted()
    assert await anext(stream) == _tokens([1])
    with pytest.raises(EngineDied):
        await anext(stream)


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
