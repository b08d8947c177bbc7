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
    body = _body(fields)
    plain = [
        {
            "content": choice["message"]["content"],
            "tokens": (choice["logprobs"] or {}).get("content", []),
            "reason": choice["finish_reason"],
        }
        for choice in _chat(demo, body)
    ]
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


def _first_token(server: RunningServer) -> tuple[int, str]:
    """The id and text of the first token of an answer to "Hello"."""
    body = _body({"content": "Hello", "max_tokens": 1})
    text = _chat(server, body)[0]["message"]["content"]
    tokens: list[int] = server.client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()[
        "tokens"
    ]
    return tokens[0], text


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_a_bias_of_minus_100_bans_and_one_of_100_selects(demo: RunningServer, temperature: float) -> None:
    token, text = _first_token(demo)
    fields = {"content": "Hello", "max_tokens": 8, "ignore_eos": True, "temperature": temperature, "seed": 3}
    (banned,) = _chat(demo, _body({**fields, "logit_bias": {str(token): -100}, "top_logprobs": 0}))
    assert text not in [scored["token"] for scored in banned["logprobs"]["content"]]
    (selected,) = _chat(demo, _body({**fields, "logit_bias": {str(token): 100}}))
    assert selected["message"]["content"] == text * 8


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_answer_has_no_bad_word(demo: RunningServer, temperature: float) -> None:
    fields = {"content": "What is the capital of France?", "max_tokens": 40, "temperature": temperature, "seed": 3}
    (plain,) = _chat(demo, _body({**fields, "temperature": 0.0}))
    words = [word for word in plain["message"]["content"].strip(".").split() if word.isalpha()]
    assert len(words) > 3
    (other,) = _chat(demo, _body({**fields, "bad_words": words}))
    assert other["message"]["content"]
    assert not [word for word in words if word in other["message"]["content"].replace(".", "").split()]


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_answer_has_allowed_tokens_only(demo: RunningServer, temperature: float) -> None:
    fields = {"content": "Hello", "max_tokens": 20, "temperature": temperature, "seed": 3, "top_logprobs": 0}
    tokens = demo.client.post("/tokenize", json={"prompt": "yes no", "add_special_tokens": False}).json()["tokens"]
    (answer,) = _chat(demo, _body({**fields, "allowed_token_ids": tokens}))
    texts = {demo.client.post("/detokenize", json={"tokens": [token]}).json()["prompt"] for token in tokens}
    assert {scored["token"] for scored in answer["logprobs"]["content"]} <= texts
    assert answer["finish_reason"] == "length"
    refused = demo.client.post("/v1/chat/completions", json=_body({**fields, "allowed_token_ids": [10**6]}))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "allowed_token_ids")


def test_nothing_ends_an_answer_before_min_tokens(demo: RunningServer) -> None:
    short = demo.client.post("/v1/chat/completions", json=_body({"content": "Hello"})).json()
    least = short["usage"]["completion_tokens"] + 5
    long = demo.client.post("/v1/chat/completions", json=_body({"content": "Hello", "min_tokens": least})).json()
    assert long["usage"]["completion_tokens"] >= least
    assert long["choices"][0]["message"]["content"].startswith(short["choices"][0]["message"]["content"])


def test_a_prompt_is_scored_as_an_answer_is(demo: RunningServer) -> None:
    """Tokens of a greedy answer have the same scores as part of a prompt, so log likelihoods can be requested."""
    prompt = "The capital of France is"
    fields = {"temperature": 0, "logprobs": 2}
    made = demo.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 6, **fields}).json()["choices"][0]
    whole = prompt + made["text"]
    body = {"prompt": whole, "max_tokens": 0, "echo": True, **fields}
    echoed = demo.client.post("/v1/completions", json=body).json()["choices"][0]
    assert echoed["text"] == whole
    assert echoed["finish_reason"] == "length"
    scores = echoed["logprobs"]
    assert "".join(scores["tokens"]) == whole
    assert scores["token_logprobs"][0] is None
    assert scores["top_logprobs"][0] is None
    made_tokens = made["logprobs"]["tokens"]
    assert scores["tokens"][-len(made_tokens) :] == made_tokens
    assert scores["token_logprobs"][-len(made_tokens) :] == pytest.approx(made["logprobs"]["token_logprobs"], abs=1e-3)
    for offset, token in zip(scores["text_offset"], scores["tokens"], strict=True):
        assert whole[offset:].startswith(token)
