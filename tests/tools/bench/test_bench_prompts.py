"""Prompts of a given length that no server has cached."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genai_server.tools.bench.bench_client import Calibration, Server, calibrate, words
from genai_server.tools.bench.measurement import AnswerError
from tests.tools.bench.fake_server import TEMPLATE_TOKENS, TOKENS_PER_WORD, fake_server

pytestmark = pytest.mark.anyio


def test_words_are_determined_by_the_key_and_each_comes_as_often_as_any_other() -> None:
    assert words(20, "seed", 1) == words(20, "seed", 1) != words(20, "seed", 2)
    assert len(words(20, "seed").split()) == 20
    counts = Counter(words(10_000, "seed").split()).values()
    assert max(counts) - min(counts) <= 1


def test_a_calibration_gives_the_words_for_a_length() -> None:
    calibration = Calibration(overhead=10.0, tokens_per_word=2.0)
    assert (calibration.words_for(64), calibration.words_in(16), calibration.words_for(1)) == (27, 8, 1)


@asynccontextmanager
async def at(url: str) -> AsyncIterator[Server]:
    server = Server("A", url, api_key=None, model=None, body={})
    try:
        yield server
    finally:
        await server.close()


@pytest.mark.parametrize("how", [{}, {"has_usage": False, "in_a_chunk": 4}], ids=["usage", "without usage"])
async def test_two_requests_calibrate_a_servers_token_count(how: dict[str, Any]) -> None:
    async with fake_server(**how) as fake, at(fake.url) as server:
        assert await calibrate(server, "seed") == Calibration(TEMPLATE_TOKENS, TOKENS_PER_WORD)
        answer = (await server.ask(words(30, "x"), 8)).answer()
    assert (answer.prompt_tokens, answer.output_tokens) == (TEMPLATE_TOKENS + 30 * TOKENS_PER_WORD, 8)
    assert len(answer.chunks) == 8 // how.get("in_a_chunk", 1)


async def test_unreachable_server_is_reported() -> None:
    with pytest.raises(AnswerError, match="no server at http://127.0.0.1:"):
        async with at("http://127.0.0.1:9") as server:
            await calibrate(server, "seed")
