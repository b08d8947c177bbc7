"""Hybrid models behind the API: what other requests do leaves no trace in the states of a row.

HYBRID_REQUESTS sets the number of requests that some tests send to each model; 1000 take several minutes.
"""

import json
import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.running_server import RunningServer, run_server, wait_until

BUILT = Path(__file__).parent / "built_models"
CONTEXT, NUM_CLIENTS = 256, 12
NUM_REQUESTS = int(os.environ.get("HYBRID_REQUESTS", "80"))
# An engine is killed once in this number of requests.
REQUESTS_PER_KILL = 250
NUM_TOKENS = 20
DEATHS = {"engine_died", "no_engine_ready"}


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
        assert response.json()["error"]["code"] in DEATHS
        return None
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def insist(server: RunningServer, prompt: list[int]) -> str:
    """The answer's text, asked again until its engine lives long enough."""
    texts: list[str | None] = []

    def is_answered() -> bool:
        texts.append(complete(server, prompt))
        return texts[-1] is not None

    wait_until(is_answered, 120.0, least=0.1)
    return texts[-1] or ""


def leave(server: RunningServer, prompt: list[int], num_lines: int) -> None:
    """Disconnect from a stream after some lines."""
    sent = {"prompt": prompt, "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=sent) as response:
        if response.status_code == 503:
            assert json.loads(response.read())["error"]["code"] in DEATHS
            return
        assert response.status_code == 200
        for _ in zip(range(num_lines), response.iter_lines(), strict=False):
            pass


@pytest.fixture
def prompts() -> list[list[int]]:
    chance = random.Random(1)
    return [[chance.randrange(10, 290) for _ in range(length)] for length in (5, 30, 80, 150, 200)]


@pytest.mark.timeout(60 + NUM_REQUESTS)
def test_cancelled_and_killed_company_changes_no_answer(server: RunningServer, prompts: list[list[int]]) -> None:
    assert server.device("cpu")["batching"]["scheduler"] == "batched"
    alone = [insist(server, prompt) for prompt in prompts]
    assert len(set(alone)) == len(alone)
    killed: list[int] = []

    def ask(number: int) -> bool:
        each = random.Random(number)
        index = each.randrange(len(prompts))
        if number % REQUESTS_PER_KILL == NUM_CLIENTS:
            wait_until(lambda: server.device("cpu")["state"] == "ready", 120.0, least=0.1)
            killed.append(server.device("cpu")["pid"])
            os.kill(killed[-1], signal.SIGKILL)
        if each.random() < 0.3:
            leave(server, prompts[index], each.choice([0, 1, 3, 10]))
            return False
        assert insist(server, prompts[index]) == alone[index]
        return True

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        num_answers = sum(clients.map(ask, range(NUM_REQUESTS)))
    assert num_answers > NUM_REQUESTS / 2
    assert len(set(killed)) == 1 + (NUM_REQUESTS - NUM_CLIENTS - 1) // REQUESTS_PER_KILL
    assert server.device("cpu")["pid"] not in killed
    assert server.log().count("is restarted in") == len(killed)
    assert [insist(server, prompt) for prompt in prompts] == alone
