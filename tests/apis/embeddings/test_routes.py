"""OpenAI's embeddings, reranking and scores, with the demo models on real engines."""

import asyncio
import base64
import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from genai_server.apis import embeddings as embedding
from genai_server.generation.catalog import Catalog
from genai_server.timing import request_clock
from tests.raw_http import connect, post
from tests.running_server import DEMO, ROOT, RunningServer, body, refusal, wait_until
from tests.scraped import scrape
from tests.server_here import run_here

VECTORS, SCORES = ROOT / "models" / "demo-embeddings", ROOT / "models" / "demo-reranker"
ABOUT = ["Paris is the capital of France.", "It will rain all afternoon.", "PORT sets the port; the default is 8002."]
# The results of sentence-transformers 6.2 for these weights.
RECORDED = json.loads((Path(__file__).parent / "demo_vectors.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = {"chat": DEMO, "vectors": VECTORS, "scores": SCORES}
    settings = {"GENAI_MODELS": ",".join(f"{name}={path}" for name, path in models.items())}
    with run_here(tmp_path_factory.mktemp("pooled"), "--device", "cpu", settings=settings) as running:
        wait_until(lambda: all(m["state"] == "ready" for m in running.client.get("/v1/models").json()["data"]))
        yield running


def ask(server: RunningServer, path: str, **fields: Any) -> httpx.Response:
    return server.client.post(f"/v1/{path}", json=fields)


def embed(server: RunningServer, input: Any, **fields: Any) -> list[list[float]]:
    return [entry["embedding"] for entry in ask(server, "embeddings", input=input, **fields).json()["data"]]


def scores(server: RunningServer, first: Any, second: Any) -> list[float]:
    return [entry["score"] for entry in ask(server, "score", text_1=first, text_2=second).json()["data"]]


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def test_waiting_for_the_model_counts_as_loading(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    serving, held = Catalog.serving, 0.0

    async def held_up(*args: Any) -> Any:
        nonlocal held
        began = request_clock()
        await asyncio.sleep(0.2)
        held += request_clock() - began
        return await serving(*args)

    monkeypatch.setattr(Catalog, "serving", held_up)
    header = server.client.post("/v1/embeddings", json={"input": "rain"}).headers["server-timing"]
    times = {name: float(value) / 1000 for name, value in (part.split(";dur=") for part in header.split(", "))}
    assert times["total"] >= times["load"] >= held - 1e-6 > 0  # three digits of milliseconds
    assert sum(times.values()) == pytest.approx(2 * times["total"], abs=1e-5)
    held = 0.0
    found = server.client.post("/api/embed", json={"model": "vectors", "input": "rain"}).json()
    assert found["total_duration"] >= found["load_duration"] >= held * 1e9 - 1 > 0


def test_vectors_and_scores_equal_those_of_sentence_transformers(server: RunningServer) -> None:
    for vector, recorded in zip(embed(server, RECORDED["texts"]), RECORDED["vectors"], strict=True):
        assert distance(vector, recorded) < 1e-3
    first, second = zip(*RECORDED["pairs"], strict=True)
    assert distance(scores(server, first, second), RECORDED["scores"]) < 1e-3


def test_a_text_has_the_same_vector_alone_and_among_others(server: RunningServer) -> None:
    texts = ["a", *ABOUT, "word " * 100]
    for text, among in zip(texts, embed(server, texts), strict=True):
        assert distance(embed(server, text)[0], among) < 1e-5


def test_base64_and_numbers_are_the_same_vector(server: RunningServer) -> None:
    (numbers,), (text,) = embed(server, "rain"), embed(server, "rain", encoding_format="base64")
    assert numbers == list(struct.unpack("<128f", base64.b64decode(str(text))))


def test_shorter_vectors_are_the_beginning_with_length_1(server: RunningServer) -> None:
    (whole,), (short,) = embed(server, "rain"), embed(server, "rain", dimensions=32)
    assert math.hypot(*short) == pytest.approx(1.0, abs=1e-5)
    length = math.hypot(*whole[:32])
    assert distance([each / length for each in whole[:32]], short) < 1e-6


def test_long_work_on_vectors_is_done_in_threads(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of it runs on the event loop's thread."""
    loops = []

    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            loops.append(asyncio._get_running_loop())
            return method(*arguments, **options)

        return call

    monkeypatch.setattr(embedding, "_shortened", noted(embedding._shortened))
    monkeypatch.setattr(embedding._PooledRequest, "_in_order", noted(embedding._PooledRequest._in_order))
    assert len(embed(server, ["rain"] * 3, dimensions=32)) == 3
    assert loops == [None, None]


def test_untrained_dimensions_are_refused_with_the_trained_ones(server: RunningServer) -> None:
    refused = ask(server, "embeddings", input="rain", dimensions=100)
    assert refusal(refused) == (400, "invalid_value", "dimensions")
    assert refused.json()["error"]["message"] == "dimensions must be supported by the model (32, 64, 128); given 100"


def test_token_ids_are_read_as_they_are(server: RunningServer) -> None:
    tokens = server.client.post("/tokenize", json={"model": "vectors", "prompt": "rain today"}).json()["tokens"]
    assert embed(server, tokens) == embed(server, [tokens]) == embed(server, "rain today")
    for input, param in (([[1], [10**6]], "input[1]"), ([1, 10**6], "input")):
        assert refusal(ask(server, "embeddings", input=input)) == (400, "invalid_value", param)


def test_usage_counts_the_tokens_of_all_texts(server: RunningServer) -> None:
    answer = ask(server, "embeddings", input=[[1, 2], [1, 2, 3]]).json()
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert (answer["object"], answer["model"]) == ("list", "vectors")


def test_a_long_text_is_refused_with_the_limit_or_cut(server: RunningServer) -> None:
    long = "rain " * 400
    refused = ask(server, "embeddings", input=["a", long])
    assert refusal(refused) == (400, "context_length_exceeded", "input[1]")
    assert "at most 256 (the model's context); given 402" in refused.text
    refused = ask(server, "embeddings", input="a", truncate_prompt_tokens=257)
    assert "must be at most 256 (the model's context); given 257" in refused.text
    assert embed(server, long, truncate_prompt_tokens=-1) == embed(server, "rain " * 254)
    assert embed(server, long, truncate_prompt_tokens=12) == embed(server, "rain " * 10)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": [{"text": "a"}]}, "input"),
        ({"input": [None]}, "input"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 2}, "truncate_prompt_tokens"),
        ({"input": "a", "truncate_prompt_tokens": 257}, "truncate_prompt_tokens"),
        ({"input": "a", "prompt_name": "query"}, "prompt_name"),
        ({"input": "a", "nonsense": 1}, "nonsense"),
        ({}, "input"),
    ],
)
def test_wrong_bodies_are_refused_with_the_field(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    status, _, named = refusal(ask(server, "embeddings", **fields))
    assert (status, named) == (400, param)


def test_openais_client_gets_vectors(server: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        found = client.embeddings.create(model="vectors", input=["rain", "France"], dimensions=64)
        as_numbers = client.embeddings.create(model="vectors", input="rain", encoding_format="float")
    assert [len(entry.embedding) for entry in found.data] == [64, 64]
    assert as_numbers.data[0].embedding == embed(server, "rain")[0]
    assert len(embed(server, "")) == 1


def test_documents_are_ranked_by_their_relevance(server: RunningServer) -> None:
    documents = [*ABOUT[1:], {"text": ABOUT[0]}]
    answer = ask(server, "rerank", query="Which of these is about France?", documents=documents, top_n=2).json()
    first, second = answer["results"]
    assert (first["index"], first["document"], answer["model"]) == (2, {"text": ABOUT[0]}, "scores")
    assert first["relevance_score"] > 0.5 > second["relevance_score"]
    assert answer["usage"]["total_tokens"] == answer["meta"]["tokens"]["input_tokens"] > 0


def test_coheres_second_form_returns_documents_only_on_demand(server: RunningServer) -> None:
    asked = {"model": "scores", "query": "rain", "documents": ABOUT}
    assert all("document" not in r for r in server.client.post("/v2/rerank", json=asked).json()["results"])
    shown = server.client.post("/v2/rerank", json={**asked, "return_documents": True}).json()
    assert all("document" in result for result in shown["results"])
    assert server.client.post("/rerank", json=asked).json()["results"][0]["index"] == 1


def test_what_coheres_first_form_adds_is_named(server: RunningServer) -> None:
    """Documents are not divided into chunks, and are ranked by their texts alone."""
    documents = [{"text": text, "title": "rain"} for text in ABOUT]
    plain = ask(server, "rerank", query="rain", documents=ABOUT).json()
    answer = ask(server, "rerank", query="rain", documents=documents, max_chunks_per_doc=10, rank_fields=["text"])
    assert answer.json()["results"] == plain["results"]
    assert answer.headers["x-genai-ignored"] == "max_chunks_per_doc, documents[].title"
    refused = ask(server, "rerank", query="rain", documents=documents, rank_fields=["title"])
    assert refusal(refused) == (400, "invalid_value", "rank_fields[0]")


def test_one_text_is_scored_with_each_of_several(server: RunningServer) -> None:
    assert scores(server, "rain", ABOUT) == scores(server, ["rain"] * 3, ABOUT)
    refused = ask(server, "score", text_1=["a", "b"], text_2=ABOUT)
    assert refusal(refused) == (400, "invalid_value", "text_1")


def test_long_documents_are_refused_or_cut(server: RunningServer) -> None:
    long = "rain " * 400
    asked = {"query": "rain", "documents": ["a", long]}
    for refused, param in (
        (ask(server, "rerank", **asked), "documents[1]"),
        (ask(server, "rerank", query=long, documents=["a"]), "query"),
        (ask(server, "score", text_1=["a", long], text_2=["a", "b"]), "text_1[1]"),
    ):
        assert refusal(refused) == (400, "context_length_exceeded", param)
    assert ask(server, "rerank", **asked, truncate_prompt_tokens=-1).status_code == 200
    assert ask(server, "rerank", **asked, max_tokens_per_doc=50).status_code == 200


NO_TEXT = '" generates no text; "chat" can'


@pytest.mark.parametrize(
    ("paths", "fields", "rest"),
    [
        (["embeddings"], {"input": "a", "model": "chat"}, '" makes no embeddings; "vectors" can'),
        (
            ["rerank"],
            {"query": "a", "documents": ["b"], "model": "vectors"},
            '" cannot rerank or score texts; "scores" can',
        ),
        (["completions", "completions/render"], {"prompt": "a", "model": "vectors"}, NO_TEXT),
        (
            ["chat/completions", "chat/completions/render", "tokenize", "apply-template"],
            {**body("hi"), "model": "scores"},
            NO_TEXT,
        ),
        (["responses/input_tokens"], {"input": "a", "model": "scores"}, NO_TEXT),
    ],
)
def test_unsupported_task_is_refused_with_models_that_support_it(
    server: RunningServer, paths: list[str], fields: dict[str, Any], rest: str
) -> None:
    for path in paths:
        refused = ask(server, path, **fields)
        assert refusal(refused) == (400, "unsupported_task", "model")
        assert refused.json()["error"]["message"] == f'model "{fields["model"]}{rest}'


def test_models_say_what_they_can_do(server: RunningServer) -> None:
    entries = {entry["id"]: entry for entry in server.client.get("/v1/models").json()["data"]}
    assert "completion" in entries["chat"]["capabilities"]
    assert (entries["vectors"]["capabilities"], entries["vectors"]["dimensions"]) == (["embedding"], 128)
    assert (entries["scores"]["capabilities"], entries["scores"]["chat"]) == (["rerank"], False)
    assert entries["vectors"]["max_model_len"] == 256


def test_metrics_and_health_count_texts_as_they_count_answers(server: RunningServer) -> None:
    embed(server, "rain")
    assert server.health()["models"]["vectors"]["devices"]["cpu"]["batching"]["scheduler"] == "pooled"
    labels = {"device": "cpu", "model_name": "vectors"}
    wait_until(lambda: scrape(server).value("request_success_total", finished_reason="stop", **labels) > 0)
    wait_until(lambda: scrape(server).value("prompt_tokens_total", **labels) > 0)


def test_chat_continues_next_to_many_texts(server: RunningServer) -> None:
    texts = [f"{number} {'rain ' * 200}" for number in range(60)]
    with ThreadPoolExecutor(1) as thread:
        vectors = thread.submit(embed, server, texts)
        answer = ask(server, "chat/completions", **body("What is the capital of France?", model="chat")).json()
        assert "Paris" in answer["choices"][0]["message"]["content"]
        assert len(vectors.result()) == 60


def test_disconnected_clients_request_ends(server: RunningServer) -> None:
    def running() -> int:
        found: int = server.health()["models"]["vectors"]["devices"]["cpu"]["running"]
        return found

    with connect(server) as sock:
        sock.sendall(post(server, "/v1/embeddings", json={"input": ["rain " * 200] * 900}))
        wait_until(lambda: running() > 0)
    wait_until(lambda: running() == 0)


def test_request_beyond_its_timeout_fails_with_that_reason(server: RunningServer) -> None:
    refused = ask(server, "embeddings", input=["rain " * 200] * 900, timeout=0.6)
    assert refusal(refused) == (504, "timeout", None)
    assert "did not finish within 0.6 s" in refused.text
