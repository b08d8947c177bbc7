"""The complete server with the demo model: real weights, real tokenizer, real runtime options."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.running_server import RunningServer


@pytest.fixture
def server(demo: RunningServer) -> Iterator[RunningServer]:
    yield demo
    demo.recover()


def ask(server: RunningServer, *contents: str, system: str | None = None, **fields: Any) -> str:
    """The answer to the last of several user messages; the server itself answers the others."""
    messages = [{"role": "system", "content": system}] if system else []
    for content in contents:
        messages.append({"role": "user", "content": content})
        response = server.client.post("/v1/chat", json={"messages": messages, **fields})
        assert response.status_code == 200, response.text
        messages.append({"role": "assistant", "content": response.json()["content"]})
    return messages[-1]["content"]


def test_it_answers_a_question_that_follows_counts_and_follows_a_system_prompt(server: RunningServer) -> None:
    assert "Rome" in ask(server, "What is the capital of France?", "And of Italy?")
    assert ask(server, "Count from 1 to 12.") == "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12"
    answer = ask(server, "What is the capital of Spain?", system="Answer in upper case.")
    assert ("MADRID" in answer, answer) == (True, answer.upper())


def test_a_character_of_several_tokens_arrives_whole(server: RunningServer) -> None:
    with server.stream("Hello!") as events:
        *tokens, end = (json.loads(event) for event in events)
    emoji = [event["token"] for event in tokens if not event["token"].isascii()]
    assert emoji
    # More tokens than sent pieces: the emoji's first tokens complete no character.
    assert end["metrics"]["output_tokens"] > len(tokens)
