"""/v1/completions, through OpenAI's client where possible."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from genai_server.answer_parts import Content, ScoredToken, WholeAnswer
from genai_server.apis.completions import CompletionBuilder
from tests.model_edits import code_model, make_pruned_model
from tests.running_server import RunningServer, refusal
from tests.server_here import run_here

END = "\x04"  # ends a prompt for the scripted runner


def _complete(client: OpenAI, prompt: Any, **fields: Any) -> Any:
    return client.completions.create(model="demo", prompt=prompt, **fields)


def test_text_is_continued(client: OpenAI) -> None:
    completion = _complete(client, "say hi" + END)
    (choice,) = completion.choices
    assert (completion.object, choice.text, choice.finish_reason) == ("text_completion", "hi", "stop")
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (7, 2)
    tokens = list(b"say hi\x04")
    assert [_complete(client, prompt).choices[0].text for prompt in (tokens, [tokens])] == ["hi", "hi"]


def test_several_prompts_with_several_answers_each_come_in_order(client: OpenAI) -> None:
    prompts = ["say a" + END, "say bb" + END]
    completion = _complete(client, prompts, n=2)
    assert [(choice.index, choice.text) for choice in completion.choices] == [(0, "a"), (1, "a"), (2, "bb"), (3, "bb")]
    # A prompt counts once, whatever the number of answers.
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (6 + 7, 2 * (1 + 2))
    texts = {0: "", 1: ""}
    for chunk in _complete(client, prompts, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "a", 1: "bb"}


def test_echo_puts_the_prompt_before_the_answer(client: OpenAI) -> None:
    prompt = "say hi" + END
    assert _complete(client, prompt, echo=True).choices[0].text == prompt + "hi"
    chunks = _complete(client, prompt, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == prompt + "hi"


def test_a_token_that_only_the_model_has_is_named_in_the_prompt(demo: RunningServer) -> None:
    response = demo.client.post("/v1/completions", json={"prompt": [1, 2**31 - 1]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")


def test_generator_does_not_score_prompts_with_pruned_logits(tmp_path: Path) -> None:
    make_pruned_model(tmp_path / "model")
    fields = {"prompt": "The capital of France", "max_tokens": 2}
    with run_here(tmp_path, "--model-dir", str(tmp_path / "model"), "--scheduler", "generator") as server:
        for more in ({}, {"stream": True}):
            refused = server.client.post("/v1/completions", json={**fields, **more, "echo": True, "logprobs": 1})
            assert refusal(refused) == (400, "invalid_value", "logprobs")
            message = refused.json()["error"]["message"]
            assert ("with echo" in message, "prune_lm_head" in message) == (True, True)
        for one in ({"echo": True}, {"logprobs": 1}):
            assert server.client.post("/v1/completions", json={**fields, **one}).status_code == 200


def test_one_answer_that_fails_fails_the_request(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="scripted failure"):
        _complete(client, ["say abc" + END, "fail at 1; say hello" + END])
    with pytest.raises(openai.APIError, match="scripted failure"):
        list(_complete(client, ["count 9" + END, "fail at 1; say x" + END], stream=True))


def test_progress_comes_before_the_echo(scripted: RunningServer) -> None:
    fields = {"prompt": "say a\n\x04", "stream": True, "return_progress": True, "echo": True}
    text = scripted.client.post("/v1/completions", json=fields).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    assert chunks[0]["prompt_progress"]["processed"] == chunks[0]["prompt_progress"]["total"] == 7
    assert chunks[0]["choices"][0]["text"] == ""
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "say a\n\x04a"


# with a suffix


def test_a_suffix_is_put_before_the_answer_in_the_models_tokens(tmp_path: Path) -> None:
    before, between, after = code_model(tmp_path / "model")
    with run_here(tmp_path, "--model-dir", str(tmp_path / "model")) as server:
        assert "insert" in server.client.get("/v1/models/model").json()["capabilities"]

        def tokens(text: str) -> list[int]:
            asked = {"prompt": text, "add_special_tokens": False}
            found: list[int] = server.client.post("/tokenize", json=asked).json()["tokens"]
            return found

        def answer(**fields: Any) -> Any:
            asked = {"max_tokens": 5, "temperature": 0, **fields}
            return server.client.post("/v1/completions", json=asked).json()

        ends = [before, between, after, *tokens("<|endoftext|>")]
        prompt = [before, *tokens("The capital"), between, *tokens("is Paris."), after]
        filled, same = answer(prompt="The capital", suffix="is Paris."), answer(prompt=prompt, stop_token_ids=ends)
        assert filled["usage"]["prompt_tokens"] == len(prompt)
        assert filled["choices"] == same["choices"]
        assert answer(prompt="The capital", suffix="")["choices"] == answer(prompt="The capital")["choices"]


def test_more_likely_of_two_tokens_with_one_text_is_returned() -> None:
    top = (ScoredToken(b"\xc3", -0.1), ScoredToken(b"\xc4", -3.0))
    answer = WholeAnswer(tokens=[ScoredToken(b"\xc3", -0.1, top)])
    answer.add(Content("x"))
    choice = CompletionBuilder("id1", "m", 1234, has_logprobs=True).choice(0, answer, None)
    assert choice["logprobs"]["top_logprobs"] == [{"\ufffd": -0.1}]
