"""An answer as its reader sees it, and its figures."""

import asyncio
from types import SimpleNamespace

import pytest

from genai_server.engine_client.in_flight import TokenStream
from genai_server.errors import EngineDied
from genai_server.generation import answers
from genai_server.generation.answers import EventLoopBudget, RunningAnswer
from genai_server.messages.engine_protocol import Finished, Tokens
from genai_server.messages.generation_request import FinishReason, Phases
from genai_server.text.answers.answer_text import AnswerText, PlainParser
from genai_server.text.tokenizer import ByteTokenizer
from genai_server.timing import Arrival, Stopwatch
from tests.hand_clock import HandClock

pytestmark = pytest.mark.anyio


def _answer(stream: TokenStream, *stop: str) -> RunningAnswer:
    tokenizer = ByteTokenizer()
    text = AnswerText(tokenizer.decoder(), list(stop), PlainParser(), tokenizer.token_bytes)
    return RunningAnswer(stream, text, Stopwatch(Arrival(lambda: 0.0), 2))


async def _read(answer: RunningAnswer) -> None:
    async for _ in answer.pieces():
        pass


@pytest.mark.parametrize("batches", [[b"abcd", b"efgh"], [b"a", b"bcdefg", b"h"], [b"abcdefgh"]])
async def test_the_time_per_token_is_that_of_all_tokens_made(batches: list[bytes]) -> None:
    """The engine produces tokens until it learns of the stop string; their time is divided by all of them."""
    stream = TokenStream(lambda: None)
    answer = _answer(stream, "bc")
    for batch in batches:
        stream.receive(Tokens(0, list(batch)))
    stream.receive(Finished(0, FinishReason.STOP, Phases(decode=0.7)))
    await _read(answer)
    timings = answer.timings()
    assert (answer.reason, timings.output_tokens) == (FinishReason.STOP, 3)
    assert timings.tpot == pytest.approx(0.7 / (len("abcdefgh") - 1))


async def test_an_answer_that_the_engine_did_not_end_has_no_breakdown() -> None:
    ended, failed = TokenStream(lambda: None), TokenStream(lambda: None)
    answers = [_answer(ended), _answer(failed)]
    for stream in (ended, failed):
        stream.receive(Tokens(0, list(b"abc")))
    answers[0].end()
    failed.fail(EngineDied("gone"))
    await _read(answers[0])
    with pytest.raises(EngineDied):
        await _read(answers[1])
    assert [(answer.timings().breakdown, answer.timings().tpot) for answer in answers] == [(None, None)] * 2


@pytest.fixture
def time(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> HandClock:
    """The clock of time slices."""
    monkeypatch.setattr(answers, "time", SimpleNamespace(perf_counter=clock))
    return clock


@pytest.mark.parametrize(("step", "turns"), [(0.004, 3), (0.0001, 0), (0.02, 10)])
async def test_other_tasks_run_after_each_time_slice(step: float, turns: int, time: HandClock) -> None:
    taken = 0

    async def other() -> None:
        nonlocal taken
        while True:
            await asyncio.sleep(0)
            taken += 1

    waiting = asyncio.create_task(other())
    await asyncio.sleep(0)  # it starts
    share = EventLoopBudget()
    for _ in range(10):
        time.wait(step)
        await share.yield_if_due()
    waiting.cancel()
    assert taken == turns


async def test_suspended_task_has_its_full_share_again(time: HandClock) -> None:
    turns: list[int] = []
    share = EventLoopBudget()
    time.wait(1.0)
    share.renew()
    asyncio.get_running_loop().call_soon(turns.append, 1)
    await share.yield_if_due()
    assert turns == []
