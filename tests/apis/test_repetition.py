"""Answers that repeat themselves, on the server."""

from collections.abc import Callable
from typing import Any

import pytest
from openai import OpenAI

from genai_server.text.answers.reasoning import REASONING_FORMATS
from tests.running_server import RunningServer
from tests.scraped import scrape

LOOP = "round " * 200
CALL = '<tool_call>{"name": "note", "arguments": {"text": "'
TOOL = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}


def ask(server: RunningServer, text: str, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    asked = {"messages": [{"role": "user", "content": f"say {text}"}], "max_tokens": 1900, **fields}
    return server.client.post(path, json=asked).json()


def ended(server: RunningServer, text: str, **fields: Any) -> tuple[str, str | None, int]:
    """The reasons of an answer's end, and its tokens."""
    body = ask(server, text, **fields)
    (choice,) = body["choices"]
    return choice["finish_reason"], choice.get("genai_finish_reason"), body["usage"]["completion_tokens"]


@pytest.mark.parametrize("form", REASONING_FORMATS)
def test_a_thought_that_repeats_itself_ends_the_answer(
    thinking_server: Callable[[str], RunningServer], form: str
) -> None:
    server = thinking_server(form)
    opening = REASONING_FORMATS[form].opening
    reason, cause, num_tokens = ended(server, f"{opening}I go {LOOP}")
    assert (reason, cause) == ("length", "repetition")
    assert 512 <= num_tokens - len(opening) < 512 + len("I go ") + 6 + 16
    assert ended(server, f"{opening}I go {LOOP}", repetition_detection={})[:2] == ("stop", None)
    assert ended(server, f"{opening}I go {LOOP}", ignore_eos=True)[:2] == ("length", None)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_arguments_that_repeat_themselves_end_the_answer(
    thinking_server: Callable[[str], RunningServer], choice: str
) -> None:
    """With a grammar for calls, and without one where the prompt asks for none."""
    server = thinking_server("think")
    reason, cause, num_tokens = ended(server, f"{CALL}{LOOP}", tools=[TOOL], tool_choice=choice)
    assert (reason, cause) == ("length", "repetition")
    assert 512 <= num_tokens - len(CALL) < 512 + 6 + 16


def test_content_may_repeat_itself_unless_the_request_forbids_it(client: OpenAI) -> None:
    def reasons(**fields: Any) -> tuple[str, Any]:
        (choice,) = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": f"say {LOOP[:600]}"}], extra_body=fields
        ).choices
        return choice.finish_reason, (choice.model_extra or {}).get("genai_finish_reason")

    assert reasons() == ("stop", None)
    assert reasons(repetition_detection={"max_pattern_size": 5, "min_count": 3}) == ("stop", None)
    assert reasons(repetition_detection={"max_pattern_size": 6, "min_count": 3}) == ("length", "repetition")
    assert reasons(repetition_detection={"max_pattern_size": 0}) == ("stop", None)


def test_an_answer_ends_with_the_token_that_completes_the_repetition(client: OpenAI) -> None:
    detection = {"max_pattern_size": 8, "min_pattern_size": 2, "min_count": 3}
    asked: Any = {"model": "demo", "extra_body": {"repetition_detection": detection}}
    question = "say 1, ab ab ab ab ab"
    messages: Any = [{"role": "user", "content": question}]
    whole = client.chat.completions.create(messages=messages, **asked)
    raw = client.completions.create(prompt=f"{question}\n\x04", **asked)
    streamed = client.chat.completions.create(messages=messages, stream=True, **asked)
    pieces = [choice.delta.content or "" for chunk in streamed for choice in chunk.choices]
    texts = whole.choices[0].message.content, raw.choices[0].text, "".join(pieces)
    assert (texts, raw.choices[0].finish_reason) == (("1, ab ab ab",) * 3, "length")


def test_other_apis_say_it_in_their_words_and_metrics_count_it(
    thinking_server: Callable[[str], RunningServer],
) -> None:
    server, thought = thinking_server("think"), f"<think>{LOOP}"

    def counted() -> float:
        return scrape(server).value("request_success_total", finished_reason="repetition")

    before = counted()
    message = ask(server, thought, "/v1/messages")
    assert (message["stop_reason"], message["genai_finish_reason"]) == ("max_tokens", "repetition")
    assert ask(server, thought, "/v1/chat")["finish_reason"] == "repetition"
    response = server.client.post("/v1/responses", json={"input": f"say {thought}"}).json()
    details = {"reason": "max_output_tokens", "genai_finish_reason": "repetition"}
    assert (response["status"], response["incomplete_details"]) == ("incomplete", details)
    asked = {"messages": [{"role": "user", "content": f"say {thought}"}], "stream": False}
    line = server.client.post("/api/chat", json=asked).json()
    assert (line["done_reason"], line["genai_finish_reason"]) == ("length", "repetition")
    assert counted() == before + 4
