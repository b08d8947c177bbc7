"""Prompts of a given length that no server has cached, and the processor time of a server on this machine."""

import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from multiprocessing import get_context
from typing import Any

import psutil
import pytest

from genai_server.tools.bench.bench_client import Calibration, Server, Target, calibrate, server_processes, words
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


def cpu_seconds(processes: Sequence[psutil.Process]) -> float | None:
    return Target(Server.__new__(Server), Calibration(0.0, 1.0), None, processes=processes).cpu_seconds()


def test_processes_behind_a_port_are_found_with_their_cpu_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = server_processes(f"http://localhost:{listener.getsockname()[1]}")
        assert found
        before = cpu_seconds(found)
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        after = cpu_seconds(found)
        assert before is not None
        assert after is not None
        assert after - before > 0.1


def test_remote_unused_and_ended_processes_have_no_cpu_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert server_processes(f"http://192.0.2.1:{port}") == []
        assert server_processes(f"http://example.org:{port}") == []
    assert server_processes(f"http://127.0.0.1:{port}") == []
    assert cpu_seconds([]) is None
    child = get_context("spawn").Process(target=os.getpid)
    child.start()
    processes = [psutil.Process(child.pid)]
    child.join()
    assert cpu_seconds(processes) is None
