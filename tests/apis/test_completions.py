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
from tests.running_server import RunningServer
from tests.server_here import run_here

END = "\x04"  # ends a prompt for the scripted runner


def test_text_is_continued(client: OpenAI) -> None:
    completion = client.completions.create(model="demo", prompt="say hi" + END)
    assert (completion.object, completion.choices[0].text) == ("text_completion", "hi")
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (7, 2)


def test_several_prompts_with_several_answers_each_come_in_order(client: OpenAI) -> None:
    prompts = ["say a" + END, "say bb" + END]
    completion = client.completions.create(model="demo", prompt=prompts, n=2)
    assert [(choice.index, choice.text) for choice in completion.choices] == [(0, "a"), (1, "a"), (2, "bb"), (3, "bb")]
    assert completion.usage is not None
    # A prompt counts once, whatever the number of answers.
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (6 + 7, 2 * (1 + 2))


def test_several_answers_are_streamed_side_by_side(client: OpenAI) -> None:
    texts = {0: "", 1: ""}
    for chunk in client.completions.create(model="demo", prompt=["say abc" + END, "say de" + END], stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "abc", 1: "de"}


@pytest.mark.parametrize("prompt", [list(b"say hi\x04"), [list(b"say hi\x04")]], ids=["one", "several"])
def test_a_prompt_may_be_token_ids(client: OpenAI, prompt: list[int] | list[list[int]]) -> None:
    assert client.completions.create(model="demo", prompt=prompt).choices[0].text == "hi"


def test_echo_puts_the_prompt_before_the_answer(client: OpenAI) -> None:
    assert (
        client.completions.create(model="demo", prompt="say hi" + END, echo=True).choices[0].text
        == "say hi" + END + "hi"
    )
    chunks = client.completions.create(model="demo", prompt="say hi" + END, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "say hi" + END + "hi"


def test_a_token_that_only_the_model_has_is_named_in_the_prompt(demo: RunningServer) -> None:
    response = demo.client.post("/v1/completions", json={"prompt": [1, 2**31 - 1]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")


def test_generator_does_not_score_prompts_with_pruned_logits(tmp_path: Path) -> None:
    make_pruned_model(tmp_path / "model")
    fields = {"prompt": "The capital of France", "max_tokens": 2}
    with run_here(tmp_path, "--model-dir", str(tmp_path / "model"), "--scheduler", "generator") as server:
        for more in ({}, {"stream": True}):
            refused = server.client.post("/v1/completions", json={**fields, **more, "echo": True, "logprobs": 1})
            assert refused.status_code == 400, refused.text
            error = refused.json()["error"]
            assert (error["param"], error["code"]) == ("logprobs", "invalid_value")
            assert "with echo" in error["message"]
            assert "prune_lm_head" in error["message"]
        for one in ({"echo": True}, {"logprobs": 1}):
            assert server.client.post("/v1/completions", json={**fields, **one}).status_code == 200


def test_one_answer_that_fails_fails_the_request(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="scripted failure"):
        client.completions.create(model="demo", prompt=["say abc" + END, "fail at 1; say hello" + END])
    with pytest.raises(openai.APIError, match="scripted failure"):
        list(client.completions.create(model="demo", prompt=["count 9" + END, "fail at 1; say x" + END], stream=True))


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

        def answer(**fields: Any) -> dict[str, Any]:
            asked = {"max_tokens": 5, "temperature": 0, **fields}
            response = server.client.post("/v1/completions", json=asked)
            assert response.status_code == 200, response.text
            found: dict[str, Any] = response.json()
            return found

        ends = [before, between, after, *tokens("<|endoftext|>")]
        prompt = [before, *tokens("The capital"), between, *tokens("is Paris."), after]
        filled, same = answer(prompt="The capital", suffix="is Paris."), answer(prompt=prompt, stop_token_ids=ends)
        assert filled["usage"]["prompt_tokens"] == len(prompt)
        assert filled["choices"] == same["choices"]
        assert answer(prompt="The capital", suffix="")["choices"] == answer(prompt="The capital")["choices"]


def _answer(text: str, tokens: list[ScoredToken]) -> WholeAnswer:
    answer = WholeAnswer(tokens=tokens)
    answer.add(Content(text))
    return answer


def test_more_likely_of_two_tokens_with_one_text_is_returned() -> None:
    top = (ScoredToken(b"\xc3", -0.1), ScoredToken(b"\xc4", -3.0))
    build = CompletionBuilder("id1", "m", 1234, has_logprobs=True)
    choice = build.choice(0, _answer("x", [ScoredToken(b"\xc3", -0.1, top)]), None)
    assert choice["logprobs"]["top_logprobs"] == [{"\ufffd": -0.1}]
