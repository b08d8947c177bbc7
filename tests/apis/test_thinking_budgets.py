"""Budgets of thoughts, in every format of reasoning and on every API."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from genai_server.http.api_keys import line_of
from genai_server.text.answers.reasoning import HARMONY, REASONING_FORMATS
from genai_server.text.codec import TextCodec
from genai_server.text.tool_formats import harmony
from genai_server.text.tool_formats.all_formats import PLAIN
from tests.running_server import RunningServer
from tests.server_here import run_here

BUDGET = 200
FORMATS = tuple(REASONING_FORMATS)


def script(form: str, thought: str, *, message: str = "") -> str:
    """An answer that says yes where a thought of this text is closed by the server, and thinks on where it is not.

    The tokens of the scripted model are bytes, and the server's own take the place of as many of these.
    """
    reasoning = REASONING_FORMATS[form]
    answer = f"{harmony.FINAL}yes" if reasoning is HARMONY else "yes"
    return f"say {reasoning.opening}{thought}{'b' * len(message + reasoning.end(''))}{answer}"


class Answered(NamedTuple):
    """What an API returned of an answer."""

    thought: str
    text: str
    # None where the API does not say it.
    num_reasoning: int | None = None


def _asked(server: RunningServer, path: str, question: str, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": question}], **fields}
    return server.client.post(path, json=body).json()


def _chat_completions(server: RunningServer, question: str, budget: int | None, **fields: Any) -> Answered:
    body = _asked(server, "/v1/chat/completions", question, thinking_token_budget=budget, **fields)
    message = body["choices"][0]["message"]
    details = body["usage"]["completion_tokens_details"]
    return Answered(message.get("reasoning_content", ""), message["content"], details["reasoning_tokens"])


def _own_chat(server: RunningServer, question: str, budget: int | None) -> Answered:
    body = _asked(server, "/v1/chat", question, thinking_token_budget=budget)
    return Answered(body.get("reasoning_content", ""), body["content"])


def _messages(server: RunningServer, question: str, budget: int | None) -> Answered:
    thinking = {"type": "enabled", "budget_tokens": budget}
    body = _asked(server, "/v1/messages", question, max_tokens=2000, thinking=thinking)
    texts = {block["type"]: block.get("thinking") or block.get("text") for block in body["content"]}
    num_reasoning = body["usage"]["output_tokens_details"]["thinking_tokens"]
    return Answered(texts.get("thinking", ""), texts.get("text", ""), num_reasoning)


def _responses(server: RunningServer, question: str, budget: int | None) -> Answered:
    body = server.client.post("/v1/responses", json={"input": question, "reasoning": {"max_tokens": budget}}).json()
    texts = {item["type"]: "".join(part["text"] for part in item["content"]) for item in body["output"]}
    num_reasoning = body["usage"]["output_tokens_details"]["reasoning_tokens"]
    return Answered(texts.get("reasoning", ""), texts.get("message", ""), num_reasoning)


def _ollama_chat(server: RunningServer, question: str, budget: int | str | None) -> Answered:
    message = _asked(server, "/api/chat", question, think=budget, stream=False)["message"]
    return Answered(message.get("thinking", ""), message["content"])


def _ollama_generate(server: RunningServer, question: str, budget: int | None) -> Answered:
    body = server.client.post("/api/generate", json={"prompt": question, "think": budget, "stream": False}).json()
    return Answered(body.get("thinking", ""), body["response"])


Ask = Callable[[RunningServer, str, int | None], Answered]
APIS: dict[str, Ask] = {
    "chat completions": _chat_completions,
    "own chat": _own_chat,
    "messages": _messages,
    "responses": _responses,
    "ollama's chat": _ollama_chat,
    "ollama's generate": _ollama_generate,
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("api", APIS)
def test_a_thought_is_closed_at_its_budget_and_the_answer_follows(
    thinking_server: Callable[[str], RunningServer], form: str, api: str
) -> None:
    server = thinking_server(form)
    thought, text, num_reasoning = APIS[api](server, script(form, "a" * BUDGET), BUDGET)
    assert (thought, text) == ("a" * BUDGET, "yes")
    assert num_reasoning in (None, BUDGET, BUDGET + 1)  # a line break before the end may count


@pytest.mark.parametrize("form", FORMATS)
def test_a_thought_ends_with_a_sentence_in_the_last_tenth_of_its_budget(
    thinking_server: Callable[[str], RunningServer], form: str
) -> None:
    server, thought = thinking_server(form), f"{'a' * 170}. {'c' * 11}."
    assert _chat_completions(server, script(form, thought), BUDGET)[:2] == (thought, "yes")
    # The message stands at the end of a thought that is closed.
    said = " I answer <b>now</b>. é"
    asked = script(form, "a" * 20, message="".join(map(chr, said.encode())))
    found = _chat_completions(server, asked, 20, reasoning_budget_message=said)
    assert found[:2] == ("a" * 20 + said, "yes")


def test_later_thoughts_of_an_answer_count_and_lead_to_the_answer(
    thinking_server: Callable[[str], RunningServer],
) -> None:
    server = thinking_server("harmony")
    thoughts = f"{'a' * 15}{harmony.NEXT_MESSAGE}{HARMONY.opening}{'c' * 5}{'b' * len(HARMONY.end(''))}"
    # The first thought ends by itself, the second at the budget of both, and the third at once.
    asked = f"say {HARMONY.opening}{thoughts}{HARMONY.opening}{'b' * len(HARMONY.later_end(''))}yes"
    found = _chat_completions(server, asked, 15 + len(harmony.END) + 5)
    assert (found.thought, found.text) == ("a" * 15 + "\n\n" + "c" * 5, "yes")


@pytest.mark.parametrize(("level", "budget"), [("minimal", 512), ("low", 1024), ("high", None), (True, None)])
def test_levels_of_ollama_are_budgets_where_the_template_knows_none(
    thinking_server: Callable[[str], RunningServer], level: Any, budget: int | None
) -> None:
    written = "".join(map(str, range(1000)))[: budget or 1100]
    thought, text, _ = _ollama_chat(thinking_server("think"), script("think", written), level)
    if budget is None:
        assert (text, thought.startswith(written)) == ("", True)
    else:
        assert (thought, text) == (written, "yes")


KEYS = {name: f"{name}-0123456789abcdef" for name in ("ann", "bob", "admin")}


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a default budget, and one for a key."""
    folder = tmp_path_factory.mktemp("limited")
    lines = [f"{line_of('ann', KEYS['ann'])} thinking_budget=30", f"{line_of('bob', KEYS['bob'])} concurrent=1"]
    (folder / "keys").write_text("\n".join(lines))
    options = ("--device", "scripted", "--thinking-budget", "50", "--api-key-file", str(folder / "keys"))
    with run_here(folder, *options, settings={"GENAI_ADMIN_API_KEY": KEYS["admin"]}) as server:
        yield server


@pytest.mark.parametrize(
    ("name", "own", "budget"), [("ann", None, 30), ("bob", None, 50), ("ann", 70, 70), ("bob", 20, 20)]
)
@pytest.mark.parametrize("api", APIS)
def test_a_request_without_a_budget_has_that_of_its_key_or_model(
    limited: RunningServer, api: str, name: str, own: int | None, budget: int
) -> None:
    limited.client.headers.update(bearer(name))
    assert APIS[api](limited, script("think", "a" * budget), own)[:2] == ("a" * budget, "yes")


def test_a_request_may_ask_for_no_limit(limited: RunningServer) -> None:
    limited.client.headers.update(bearer("ann"))
    assert _chat_completions(limited, f"say <think>{'a' * 100}</think>yes", -1)[:2] == ("a" * 100, "yes")


# It thinks until it is told to answer.
ENDLESS = f"delay 0.01; say <think>{''.join(map(str, range(700)))}"


@contextmanager
def thinking(server: RunningServer, headers: dict[str, str], path: str, **fields: Any) -> Iterator[Iterator[Any]]:
    """The events of an answer that thinks, from its first thought on."""
    asked = {"messages": [{"role": "user", "content": ENDLESS}], "stream": True, "max_tokens": 1500, **fields}
    with server.client.stream("POST", path, json=asked, headers=headers) as response:
        assert response.status_code == 200
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {"))
        events = (json.loads(line) for line in lines)
        next(event for event in events if _has_thought(event))
        yield events


def end(server: RunningServer, name: str, headers: dict[str, str]) -> tuple[int, Any]:
    response = server.client.post(f"/v1/requests/{name}/end_reasoning", headers=headers)
    return response.status_code, response.json().get("reasoning_ended", response.json().get("error", {}).get("code"))


def _has_thought(event: Any) -> bool:
    return any(word in json.dumps(event) for word in ('"reasoning"', '"thinking_delta"', '"content": "0"'))


def _has_text(event: Any) -> bool:
    delta = event["choices"][0]["delta"] if "choices" in event else event.get("delta", {})
    return bool(delta.get("content") or delta.get("text"))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_the_reader_of_an_answer_ends_its_reasoning(thinking_server: Callable[[str], RunningServer], path: str) -> None:
    server = thinking_server("think")
    with thinking(server, {"x-request-id": "tale"}, path) as events:
        assert end(server, "tale", {}) == (200, True)
        assert any(map(_has_text, events))
    assert end(server, "nobody", {}) == (404, "request_not_found")


def test_reasoning_is_ended_by_the_requests_key_and_by_operators(limited: RunningServer) -> None:
    path = "/v1/chat/completions"
    with thinking(limited, {**bearer("bob"), "x-request-id": "mine"}, path, thinking_token_budget=-1) as events:
        id = next(events)["id"]
        for name in ("mine", id):
            assert end(limited, name, bearer("ann")) == (404, "request_not_found")
        assert end(limited, id, bearer("bob")) == (200, True)  # although it may have one answer at a time
        assert any(map(_has_text, events))
    with thinking(limited, {**bearer("ann"), "x-request-id": "hers"}, path, thinking_token_budget=-1) as events:
        assert end(limited, "hers", bearer("admin")) == (200, True)
        assert any(map(_has_text, events))


def test_reasoning_without_a_known_format_cannot_be_ended(
    served_codec: tuple[RunningServer, TextCodec], thinking_server: Callable[[str], RunningServer]
) -> None:
    server = thinking_server("think")
    served_codec[1].dialect = PLAIN
    with thinking(server, {"x-request-id": "plain"}, "/v1/chat/completions"):
        assert end(server, "plain", {}) == (200, False)
