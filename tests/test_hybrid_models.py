"""Hybrid models behind the API: what other requests do leaves no trace in the states of a row."""

import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.running_server import RunningServer, run_server, wait_until

BUILT = Path(__file__).parent / "built_models"
CONTEXT, NUM_REQUESTS, NUM_CLIENTS = 256, 120, 12
NUM_TOKENS = 20


@pytest.fixture(scope="module", params=["lfm2", "qwen-3.5"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"GENAI_MAX_LENGTH": str(CONTEXT), "GENAI_MAX_QUEUE": str(NUM_REQUESTS)}
    folder = tmp_path_factory.mktemp("hybrid")
    with run_server(folder, "--model-dir", str(BUILT / request.param), settings=settings) as running:
        yield running


def complete(server: RunningServer, prompt: list[int]) -> str | None:
    """The answer's text; None if its engine died."""
    sent = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    response = server.client.post("/v1/completions", json=sent)
    if response.status_code in {500, 503}:
        assert response.json()["error"]["code"] in {"engine_died", "no_engine_ready"}
        return None
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def leave(server: RunningServer, prompt: list[int], num_lines: int) -> None:
    """Disconnect from a stream after some lines."""
    sent = {"prompt": prompt, "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=sent) as response:
        assert response.status_code == 200
        for _ in zip(range(num_lines), response.iter_lines(), strict=False):
            pass


@pytest.fixture
def prompts() -> list[list[int]]:
    chance = random.Random(1)
    return [[chance.randrange(10, 290) for _ in range(length)] for length in (5, 30, 80, 150, 200)]


def test_answers_in_company_are_those_given_alone(server: RunningServer, prompts: list[list[int]]) -> None:
    assert server.device("cpu")["batching"]["scheduler"] == "batched"
    alone = [complete(server, prompt) for prompt in prompts]
    assert len(set(alone)) == len(alone)

    def ask(number: int) -> None:
        each = random.Random(number)
        index = each.randrange(len(prompts))
        if each.random() < 0.3:
            leave(server, prompts[index], each.choice([0, 1, 3, 10]))
        else:
            assert complete(server, prompts[index]) == alone[index]

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        list(clients.map(ask, range(NUM_REQUESTS)))


def test_answers_around_an_engines_death_are_those_given_alone(server: RunningServer, prompts: list[list[int]]) -> None:
    alone = [complete(server, prompt) for prompt in prompts]
    engine = server.device("cpu")["pid"]

    def ask(number: int) -> bool:
        index = random.Random(number).randrange(len(prompts))
        if number == NUM_REQUESTS // 4:
            os.kill(engine, signal.SIGKILL)
        text = complete(server, prompts[index])
        assert text in {None, alone[index]}
        return text is not None

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        complete_ones = list(clients.map(ask, range(NUM_REQUESTS // 2)))
    wait_until(lambda: server.device("cpu")["state"] == "ready")
    assert server.device("cpu")["pid"] != engine
    assert any(complete_ones)
    assert [complete(server, prompt) for prompt in prompts] == alone


def test_a_profiled_request_gives_its_usual_answer(server: RunningServer, prompts: list[list[int]]) -> None:
    expected = complete(server, prompts[2])
    engine = server.device("cpu")["pid"]
    server.options(enable_profiling="hybrid")
    try:
        assert complete(server, prompts[2]) == expected
    finally:
        server.options(enable_profiling="0")
    assert server.device("cpu")["pid"] == engine
