"""Ollama's embeddings with the demo model on a real engine, compared with OpenAI's."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.running_server import DEMO, ROOT, RunningServer, wait_until
from tests.server_here import run_here

TEXTS = ["Paris is the capital of France.", "It will rain all afternoon."]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"GENAI_MODELS": f"chat={DEMO},vectors={ROOT / 'models' / 'demo-embeddings'}"}
    with run_here(tmp_path_factory.mktemp("pooled"), "--device", "cpu", settings=settings) as running:
        wait_until(lambda: all(m["state"] == "ready" for m in running.client.get("/v1/models").json()["data"]))
        yield running


def embed(server: RunningServer, **body: Any) -> httpx.Response:
    return server.client.post("/api/embed", json=body)


def openais(server: RunningServer, **body: Any) -> list[list[float]]:
    return [one["embedding"] for one in server.client.post("/v1/embeddings", json=body).json()["data"]]


def test_vectors_are_those_of_openais_api_with_ollamas_figures(server: RunningServer) -> None:
    reply = embed(server, model="vectors:latest", input=TEXTS).json()
    assert (reply["model"], reply["embeddings"]) == ("vectors:latest", openais(server, input=TEXTS))
    assert reply["total_duration"] >= reply["load_duration"] > 0
    assert reply["prompt_eval_count"] > 0
    # The default model is the first that makes embeddings.
    (alone,) = openais(server, input=TEXTS[0])
    assert embed(server, input=TEXTS[0]).json()["embeddings"] == [alone]
    assert server.client.post("/api/embeddings", json={"prompt": TEXTS[0]}).json() == {"embedding": alone}


def test_long_texts_are_truncated_unless_truncate_is_false(server: RunningServer) -> None:
    long = "Rome " * 2000
    assert len(embed(server, input=long).json()["embeddings"]) == 1
    assert embed(server, input=long, truncate=True).headers.get("x-genai-ignored") is None
    refused = embed(server, input=long, truncate=False)
    assert (refused.status_code, list(refused.json())) == (400, ["error"])
    assert refused.json()["error"].startswith("input has too many tokens (truncate: true truncates texts)")


def test_invalid_dimensions_are_refused_and_options_ignored(server: RunningServer) -> None:
    refused = embed(server, input="x", dimensions=5)
    assert (refused.status_code, "dimensions" in refused.json()["error"]) == (400, True)
    taken = embed(server, input="x", dimensions=0, options={"num_ctx": 99, "temperature": 1})
    assert (taken.status_code, "options" in taken.headers["x-genai-ignored"]) == (200, True)


def test_request_without_text_loads_the_model(server: RunningServer) -> None:
    assert embed(server, model="vectors").json()["embeddings"] == []
    assert server.client.post("/api/embeddings", json={"model": "vectors"}).json() == {"embedding": []}
    assert embed(server, model="vectors", input=[]).json()["embeddings"] == []


def test_embedding_model_refuses_chat_and_shows_its_capability(server: RunningServer) -> None:
    refused = server.client.post("/api/chat", json={"model": "vectors", "messages": [{"role": "user", "content": "x"}]})
    assert (refused.status_code, "vectors" in refused.json()["error"]) == (400, True)
    assert server.client.post("/api/show", json={"model": "vectors"}).json()["capabilities"] == ["embedding"]


def test_number_of_texts_is_limited_as_by_openais_endpoint(server: RunningServer) -> None:
    assert len(embed(server, input=["a"] * 2048).json()["embeddings"]) == 2048
    assert embed(server, input=["a"] * 2049).status_code == 400
