"""Scores and classes by the demo model: vLLM's and SGLang's forms, and what is refused."""

import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from genai_server.errors import RunnerFailed
from genai_server.generation.engine_requests import EngineAnswer, EngineRequests
from genai_server.messages.generation_request import GenerationRequest
from tests.running_server import DEMO, RunningServer, refusal
from tests.server_here import run_here

QUERY, ITEMS = "The capital of", [" France is", " Italy is", " Spain is"]
LABELS = [100, 200, 300]
SCORING: dict[str, Any] = {"query": QUERY, "items": ITEMS, "label_token_ids": LABELS}
CLASSIFYING: dict[str, Any] = {"input": ["It rains.", "The sun shines."], "labels": ["wet", "dry", "dry and hot"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_here(tmp_path_factory.mktemp("scoring"), "--model-dir", str(DEMO), "--device", "cpu") as running:
        yield running


def post(server: RunningServer, path: str, body: Any, **fields: Any) -> Any:
    response = server.client.post(path, json={**body, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def reference(server: RunningServer, prompt: Sequence[int]) -> list[float]:
    """The probability of each label after a prompt, by the log probabilities of prompts that end with it."""
    prompts = [[*prompt, label] for label in LABELS]
    found = post(server, "/v1/completions", {"prompt": prompts, "echo": True, "logprobs": 0, "max_tokens": 0})
    return [math.exp(choice["logprobs"]["token_logprobs"][-1]) for choice in found["choices"]]


def tokens(server: RunningServer, text: str) -> list[int]:
    return post(server, "/tokenize", {"content": text})["tokens"]  # type: ignore[no-any-return]


def test_scores_are_the_probabilities_of_labels(server: RunningServer) -> None:
    query, items = tokens(server, QUERY), [tokens(server, item) for item in ITEMS]
    expected = [reference(server, [*query, *item]) for item in items]
    scores = post(server, "/v1/score", SCORING)
    assert [value for one in scores["scores"] for value in one] == pytest.approx(sum(expected, []), rel=1e-4)
    assert (scores["object"], scores["model"]) == ("scoring", "demo")
    found = post(server, "/generative_scoring", {**SCORING, "model": "demo"})
    assert [one["index"] for one in found["data"]] == [0, 1, 2]
    assert [one["score"] for one in found["data"]] == pytest.approx([one[0] / sum(one) for one in expected], rel=1e-4)
    num_tokens = len(query) + sum(map(len, items))
    assert found["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "completion_tokens": 0}
    as_tokens = {"query": query, "items": items, "label_token_ids": LABELS}
    assert post(server, "/v1/generative_scoring", as_tokens)["data"] == found["data"]
    plain = post(server, "/v1/generative_scoring", SCORING, apply_softmax=False)["data"]
    assert [one["score"] for one in plain] == pytest.approx([one[0] for one in expected], rel=1e-4)


def test_an_item_may_come_first(server: RunningServer) -> None:
    query, item = tokens(server, QUERY), tokens(server, ITEMS[0])
    (found,) = post(server, "/v1/score", SCORING, items=ITEMS[0], item_first=True)["scores"]
    assert found == pytest.approx(reference(server, [*item, *query]), rel=1e-4)


def test_the_tokenizers_special_tokens_begin_a_query_unless_left_out(tmp_path: Path) -> None:
    with_beginning = Path(shutil.copytree(DEMO, tmp_path / "demo"))
    tokenizer = Tokenizer.from_file(str(with_beginning / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.save(str(with_beginning / "tokenizer.json"))
    with run_here(tmp_path, "--model-dir", str(with_beginning), "--device", "cpu") as server:
        query, items = tokens(server, QUERY), [tokens(server, item) for item in ITEMS]
        for fields, expected in (
            ({}, [1, *query]),
            ({"add_special_tokens": True}, [1, *query]),
            ({"add_special_tokens": False}, query),
        ):
            as_text = post(server, "/v1/score", SCORING, **fields)["scores"]
            as_tokens = post(server, "/v1/score", {**SCORING, "query": expected, "items": items})["scores"]
            assert sum(as_text, []) == pytest.approx(sum(as_tokens, []), rel=1e-4)


def test_texts_are_classified(server: RunningServer) -> None:
    found = post(server, "/classify", CLASSIFYING)
    assert [(one["index"], one["num_classes"]) for one in found["data"]] == [(0, 3), (1, 3)]
    for one in found["data"]:
        assert sum(one["probs"]) == pytest.approx(1)
        assert one["label"] == CLASSIFYING["labels"][one["probs"].index(max(one["probs"]))]
    (alone,) = post(server, "/v1/classify", CLASSIFYING, input=CLASSIFYING["input"][1], cache_salt="x")["data"]
    assert alone == {**found["data"][1], "index": 0}
    assert post(server, "/classify", CLASSIFYING, instructions="Hot?")["data"] != found["data"]


def test_a_pass_that_fails_is_an_error(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self: EngineRequests, request: GenerationRequest, **_: Any) -> EngineAnswer:
        raise RunnerFailed("the pass failed")

    monkeypatch.setattr(EngineRequests, "run", run)
    for path, body in (("/classify", CLASSIFYING), ("/generative_scoring", SCORING), ("/score", SCORING)):
        assert refusal(server.client.post(path, json=body)) == (500, "runner_failed", None)


@pytest.mark.parametrize(
    ("path", "body", "fields", "code", "param"),
    [
        ("/v1/score", SCORING, {"label_token_ids": []}, "invalid_value", "label_token_ids"),
        ("/v1/score", SCORING, {"label_token_ids": [1, 1]}, "invalid_value", "label_token_ids"),
        ("/v1/score", SCORING, {"label_token_ids": [10**6]}, "invalid_value", "label_token_ids"),
        ("/v1/score", SCORING, {"items": []}, "invalid_value", "items"),
        ("/v1/score", SCORING, {"items": [[1], [10**6]]}, "invalid_value", "items[1]"),
        ("/v1/score", SCORING, {"query": "", "items": ["a", ""]}, "invalid_value", "query"),
        ("/v1/score", SCORING, {"items": ["a", "a b " * 3000]}, "context_length_exceeded", "items[1]"),
        ("/v1/score", SCORING, {"text_1": "x"}, "unknown_parameter", "text_1"),
        ("/v1/score", {"text_1": "x"}, {}, "missing_required_parameter", "text_2"),
        ("/v1/score", {"text_1": "x", "text_2": "y"}, {}, "unsupported_task", "model"),
        ("/classify", CLASSIFYING, {"labels": ["wet"]}, "invalid_value", "labels"),
        ("/classify", CLASSIFYING, {"labels": ["wet", "wet"]}, "invalid_value", "labels"),
        ("/classify", CLASSIFYING, {"input": ["a", "a b " * 3000]}, "context_length_exceeded", "input[1]"),
    ],
)
def test_invalid_field_is_named(
    server: RunningServer, path: str, body: Any, fields: Any, code: str, param: str
) -> None:
    assert refusal(server.client.post(path, json={**body, **fields})) == (400, code, param)
