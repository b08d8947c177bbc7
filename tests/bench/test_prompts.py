"""Prompts of a length, which no server has seen."""

import asyncio
from collections import Counter

import pytest

from genai_server.bench.answer import AnswerError
from genai_server.bench.client import Server
from genai_server.bench.prompts import Calibration, calibrate, words
from tests.bench.fake_server import TEMPLATE_TOKENS, TOKENS_PER_WORD, fake_server


def test_the_same_key_gives_the_same_words_and_another_one_others() -> None:
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


def test_two_requests_tell_how_a_server_counts() -> None:
    async def found() -> Calibration:
        async with fake_server() as fake:
            server = Server("A", fake.url, api_key=None, model=None, body={})
            try:
                return await calibrate(server, "seed")
            finally:
                await server.close()

    assert asyncio.run(found()) == Calibration(TEMPLATE_TOKENS, TOKENS_PER_WORD)


def test_a_server_that_is_not_there_says_so() -> None:
    async def ask() -> None:
        server = Server("A", "http://127.0.0.1:9", api_key=None, model=None, body={})
        try:
            await calibrate(server, "seed")
        finally:
            await server.close()

    with pytest.raises(AnswerError, match="ClientConnectorError"):
        asyncio.run(ask())
