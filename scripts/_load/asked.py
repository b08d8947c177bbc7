"""Requests under load: questions with known answers, long ones to be interrupted, and invalid bodies."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import Any

COUNTRIES = ("France", "Japan", "Italy", "Egypt", "Peru", "Cuba", "Spain", "Kenya")
MODEL = "onnx-genai"
# Models with the same files as MODEL, which are loaded when a request names them.
ON_DEMAND = ("second", "third")
# Maximum tokens of a prompt and its answer together, on the tested servers.
MAX_LENGTH = 1024


@dataclass(frozen=True)
class Asked:
    """One request; `streamed` if its answer comes as events."""

    path: str
    body: bytes
    streamed: bool
    expected: int = 200


def question(number: int) -> Asked:
    """A request on one of the endpoints, streamed or not, greedy or with a seed; the same for the same number."""
    chance = random.Random(number)
    messages = _conversation(chance)
    sampling: dict[str, Any] = {"temperature": 0.0}
    if chance.random() < 0.5:
        sampling = {"temperature": chance.choice((0.4, 0.8, 1.2)), "seed": number, "top_p": chance.choice((1.0, 0.9))}
    tokens = chance.randint(4, 48)
    streamed = chance.random() < 0.5
    path = chance.choice(("chat", "chat/completions", "completions", "responses", "messages"))
    body: dict[str, Any]
    match path:
        case "chat":
            path = "chat/stream" if streamed else path
            body = {"messages": messages, "max_tokens": tokens, "logprobs": True, **sampling}
        case "chat/completions":
            body = {"messages": messages, "max_tokens": tokens, "logprobs": True, "top_logprobs": 2, **sampling}
        case "completions":
            body = {"prompt": messages[-1]["content"], "max_tokens": tokens, **sampling}
        case "responses":
            body = {"input": messages, "max_output_tokens": tokens, **sampling}
        case _:
            sampling.pop("seed", None)
            body = {"model": MODEL, "messages": messages, "max_tokens": tokens, "temperature": 0.0}
    if streamed and path != "chat/stream":
        body["stream"] = True
    return Asked(f"/v1/{path}", json.dumps(body).encode(), streamed)


def long_question(chance: random.Random) -> Asked:
    """A question whose answer continues until it is cancelled, or for some hundred tokens."""
    streamed = chance.random() < 0.7
    body = {
        "messages": _conversation(chance),
        "max_tokens": chance.choice((50, 200, 500)),
        "ignore_eos": True,
        "priority": chance.choice((0, 0, 0, 5, -5)),
    }
    return Asked("/v1/chat/stream" if streamed else "/v1/chat", json.dumps(body).encode(), streamed)


def on_demand(asked: Asked, model: str) -> Asked:
    """The same question to another model."""
    return replace(asked, body=json.dumps(json.loads(asked.body) | {"model": model}).encode())


def conversation_turns(chance: random.Random) -> list[dict[str, str]]:
    """Up to thirty messages of a conversation, as its items."""
    countries = chance.choices(COUNTRIES, k=chance.choice((2, 8, 30)))
    return [{"role": "user", "content": f"What is the capital of {country}?"} for country in countries]


def full_length(number: int) -> dict[str, Any]:
    """A body whose prompt and answer take MAX_LENGTH tokens. No two prompts have the same beginning."""
    messages = [{"role": "user", "content": f"{number} " + "a " * 900}]
    return {"messages": messages, "ignore_eos": True}


def wrong(chance: random.Random) -> Asked:
    """A request that must be refused, and the expected status."""
    messages = [{"role": "user", "content": "Hello!"}]
    grammar = {"structured_outputs": {"regex": "("}}
    cases: list[tuple[str, Any, int]] = [
        ("/v1/chat", {"messages": []}, 400),
        ("/v1/chat", {"messages": messages, "max_tokens": chance.choice((0, -1, "7", 1.5, 10**30))}, 400),
        ("/v1/chat", {"messages": messages, "nonsense": 1}, 400),
        ("/v1/chat/stream", {"messages": messages, "temperature": chance.choice((-1, 9, "hot"))}, 400),
        ("/v1/chat/stream", {"messages": messages, "device": "abacus"}, 400),
        ("/v1/chat/completions", {"messages": messages, "model": "gpt"}, 404),
        ("/v1/chat/completions", {"messages": messages, **grammar}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 3000}]}, 400),
        ("/v1/completions", {"prompt": [10**6]}, 400),
        ("/v1/responses", {"input": "Hello!", "previous_response_id": "resp_none"}, 400),
        ("/v1/messages", {"model": MODEL, "messages": messages}, 400),
        ("/v1/chat", b'{"messages": [', 400),
        ("/v1/completions", b"\xff\xfe", 400),
        ("/v1/chat", b" " * (1 << 20) + b"{}", 400),
        ("/v1/nowhere", {}, 404),
    ]
    path, body, status = chance.choice(cases)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Asked(path, data, False, status)


def _conversation(chance: random.Random) -> list[dict[str, str]]:
    messages = []
    for _ in range(chance.choice((0, 0, 1, 3, 12))):
        country = chance.choice(COUNTRIES)
        messages.append({"role": "user", "content": f"What is the capital of {country}?"})
        messages.append({"role": "assistant", "content": f"I do not know the capital of {country}."})
    last = chance.choice(("What is the capital of {}?", "Write a sentence about {}.", "Hello! I come from {}."))
    return [*messages, {"role": "user", "content": last.format(chance.choice(COUNTRIES))}]
