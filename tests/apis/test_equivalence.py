"""A request's answer is the same streamed or not, and follows its fields, whatever their values."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from tests.running_server import RunningServer

QUESTIONS = [
    "What is the capital of France?",
    "Count to 12.",
    "What is 3 + 4?",
    "Say something with äöü 🦜, please.",
    "",
]
requests = st.fixed_dictionaries(
    {"content": st.sampled_from(QUESTIONS), "max_tokens": st.integers(1, 24), "seed": st.integers(-5, 5)},
    optional={
        "temperature": st.sampled_from([0.0, 0.7, 2.0]),
        "top_k": st.sampled_from([0, 5]),
        "top_p": st.sampled_from([0.5, 1.0]),
        "stop": st.lists(st.sampled_from(["a", "is", ", 4", " ", "ä", "🦜", "capital of"]), min_size=1, max_size=3),
        "top_logprobs": st.integers(0, 3),
        "n": st.integers(1, 3),
        "min_tokens": st.integers(0, 1),
        "frequency_penalty": st.sampled_from([-1.0, 0.5]),
        "presence_penalty": st.sampled_from([-1.0, 0.5]),
        "repetition_penalty": st.sampled_from([0.9, 1.2]),
        "min_p": st.sampled_from([0.0, 0.2]),
        "logit_bias": st.dictionaries(st.sampled_from(["40", "300", "1000"]), st.integers(-100, 100), max_size=2),
        "response_format": st.just({"type": "json_object"}),
    },
)
moderate = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    body = {**fields, "messages": [{"role": "user", "content": fields["content"]}]}
    del body["content"]
    return body | {"logprobs": True} if "top_logprobs" in body else body


def _chat(server: RunningServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = server.client.post("/v1/chat/completions", json=body)
    if response.status_code == 400:
        # A bias that bans everything a grammar allows is the only error that appears during generation.
        assert response.json()["error"]["param"] == "logit_bias", response.text
        reject()
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    return choices


def _streamed(server: RunningServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices assembled from their chunks."""
    choices: list[dict[str, Any]] = [{"content": "", "tokens": [], "reason": None} for _ in range(body.get("n", 1))]
    with server.client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if data in ("", "[DONE]"):
                continue
            chunk = json.loads(data)["choices"][0]
            choice = choices[chunk["index"]]
            choice["content"] += chunk["delta"].get("content", "")
            choice["tokens"] += (chunk["logprobs"] or {}).get("content", [])
            choice["reason"] = chunk["finish_reason"]
    return choices


@moderate
@given(fields=requests)
def test_streamed_and_plain_answers_are_equal(demo: RunningServer, fields: dict[str, Any]) -> None:
    body, plain = _body(fields), []
    for choice in _chat(demo, body):
        tokens = (choice["logprobs"] or {}).get("content", [])
        plain.append({"content": choice["message"]["content"], "tokens": tokens, "reason": choice["finish_reason"]})
    assert _streamed(demo, body) == plain
    assert not [stop for stop in body.get("stop", ()) for choice in plain if stop in choice["content"]]


@moderate
@given(fields=requests)
def test_scored_tokens_make_up_the_text_and_are_sorted(demo: RunningServer, fields: dict[str, Any]) -> None:
    body = _body(fields) | {"logprobs": True, "top_logprobs": 3}
    for choice in _chat(demo, body):
        tokens = choice["logprobs"]["content"]
        text = bytes(byte for token in tokens for byte in token["bytes"]).decode(errors="replace")
        # A stop string may end the answer within a token.
        assert text.startswith(choice["message"]["content"].rstrip("\ufffd"))
        for token in tokens:
            scores = [other["logprob"] for other in token["top_logprobs"]]
            assert scores == sorted(scores, reverse=True)
            assert len(scores) == 3
            assert token["logprob"] <= scores[0] <= 0


def test_choices_of_one_request_have_random_streams_of_their_own(demo: RunningServer) -> None:
    body = _body({"content": "Hello", "n": 6, "seed": 7, "temperature": 2.0, "max_tokens": 60, "ignore_eos": True})
    texts = [choice["message"]["content"] for choice in _chat(demo, body)]
    assert len(set(texts)) == 6
    assert [choice["message"]["content"] for choice in _chat(demo, body)] == texts


def test_a_prompt_is_scored_as_an_answer_is(demo: RunningServer) -> None:
    """Tokens of a greedy answer have the same scores as part of a prompt, so log likelihoods can be requested."""

    def complete(prompt: str, **fields: Any) -> Any:
        asked = {"prompt": prompt, "temperature": 0, "logprobs": 2, **fields}
        return demo.client.post("/v1/completions", json=asked).json()["choices"][0]

    made = complete("The capital of France is", max_tokens=6)
    whole = "The capital of France is" + made["text"]
    echoed = complete(whole, max_tokens=0, echo=True)
    scores, expected = echoed["logprobs"], made["logprobs"]
    assert (echoed["text"], echoed["finish_reason"], "".join(scores["tokens"])) == (whole, "length", whole)
    assert (scores["token_logprobs"][0], scores["top_logprobs"][0]) == (None, None)
    length = len(expected["tokens"])
    assert scores["tokens"][-length:] == expected["tokens"]
    assert scores["token_logprobs"][-length:] == pytest.approx(expected["token_logprobs"], abs=1e-3)
    for offset, token in zip(scores["text_offset"], scores["tokens"], strict=True):
        assert whole[offset:].startswith(token)
