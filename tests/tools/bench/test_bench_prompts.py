"""Prompts of a given length that no server has cached."""

import asyncio
from collections import Counter

import pytest

from genai_server.tools.bench.bench_client import Calibration, Server, calibrate, words
from genai_server.tools.bench.measurement import Answer, AnswerError
from tests.tools.bench.fake_server import TEMPLATE_TOKENS, TOKENS_PER_WORD, fake_server


def test_words_are_determined_by_the_key() -> None:
    assert words(20, "seed", 1) == words(20, "seed", 1)
    assert words(20, "seed", 1) != words(20, "seed", 2)
    assert len(words(20, "seed").split()) == 20


def test_each_word_comes_as_often_as_any_other() -> None:
    counts = Counter(words(10_000, "seed").split()).values()
    assert max(counts) - min(counts) <= 1


def test_a_calibration_gives_the_words_for_a_length() -> None:
    calibration = Calibration(overhead=10.0, tokens_per_word=2.0)
    assert calibration.words_for(64) == 27
    assert calibration.words_in(16) == 8
    assert calibration.words_for(1) == 1


def test_two_requests_calibrate_a_servers_token_count() -> None:
    async def found() -> Calibration:
        async with fake_server() as fake:
            server = Server("A", fake.url, api_key=None, model=None, body={})
            try:
                return await calibrate(server, "seed")
            finally:
                await server.close()

    assert asyncio.run(found()) == Calibration(TEMPLATE_TOKENS, TOKENS_PER_WORD)


def test_streams_without_usage_are_counted_by_complete_answers() -> None:
    async def measured() -> tuple[Calibration, Answer]:
        async with fake_server(has_usage=False, in_a_chunk=4) as fake:
            server = Server("A", fake.url, api_key=None, model=None, body={})
            try:
                found = await calibrate(server, "seed")
                return found, (await server.ask(words(30, "x"), 8)).answer()
            finally:
                await server.close()

    calibration, answer = asyncio.run(measured())
    assert calibration == Calibration(TEMPLATE_TOKENS, TOKENS_PER_WORD)
    assert (answer.prompt_tokens, answer.output_tokens, len(answer.chunks)) == (
        TEMPLATE_TOKENS + 30 * TOKENS_PER_WORD,
        8,
        2,
    )


def test_unreachable_server_is_reported() -> None:
    async def ask() -> None:
        server = Server("A", "http://127.0.0.1:9", api_key=None, model=None, body={})
        try:
            await calibrate(server, "seed")
        finally:
            await server.close()

    with pytest.raises(AnswerError, match="no server at http://127.0.0.1:"):
        asyncio.run(ask())
