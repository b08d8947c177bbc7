"""Turns and blocks as messages for chat templates."""

import json
from typing import Any

import pytest

from genai_server.apis.messages.conversation import chat_messages
from genai_server.apis.messages.schemas import CountTokensRequest
from genai_server.errors import InvalidField


def _messages(*messages: dict[str, Any], **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    return list(chat_messages(CountTokensRequest.model_validate({"messages": list(messages), **fields})))


def _user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _result(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **fields}


HELLO = {"role": "user", "content": "hello"}
CALLED = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "add them", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        _text("I add."),
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": "ä", "b": [1, None]}},
    ],
}


def test_a_text_stays_as_it_is() -> None:
    assert _messages(HELLO) == [("messages[0]", {"role": "user", "content": "hello"})]


@pytest.mark.parametrize("system", ["Be brief.", [_text("Be"), _text("brief.")]])
def test_the_system_prompt_is_the_first_message(system: Any) -> None:
    (place, first), _ = _messages(HELLO, system=system)
    assert (place, first["role"], first["content"].split()) == ("system", "system", ["Be", "brief."])


def test_an_empty_system_prompt_is_none() -> None:
    assert len(_messages(HELLO, system="")) == len(_messages(HELLO, system=[])) == 1


def test_neighbouring_messages_of_one_role_become_one_turn() -> None:
    found = _messages(HELLO, _user(_text("a"), _text("b")), {"role": "assistant", "content": "c"}, HELLO)
    assert found == [
        ("messages[0]", {"role": "user", "content": "hello\na\nb"}),
        ("messages[2]", {"role": "assistant", "content": "c"}),
        ("messages[3]", {"role": "user", "content": "hello"}),
    ]


def test_assistant_turn_has_reasoning_and_calls_next_to_its_text() -> None:
    _, (_, turn), _ = _messages(HELLO, CALLED, HELLO)
    (call,) = turn.pop("tool_calls")
    assert turn == {"role": "assistant", "content": "I add.", "reasoning_content": "add them"}
    assert (call["id"], call["type"], call["function"]["name"]) == ("t1", "function", "add")
    assert json.loads(call["function"]["arguments"]) == {"a": "ä", "b": [1, None]}


def test_tool_result_is_a_message_before_the_users_text() -> None:
    *_, (place, result), (_, text) = _messages(HELLO, CALLED, _user(_result("3"), _text("Thanks.")))
    assert place == "messages[2].content[0]"
    assert result == {"role": "tool", "tool_call_id": "t1", "name": "add", "content": "3"}
    assert text == {"role": "user", "content": "Thanks."}


@pytest.mark.parametrize(
    ("result", "content"),
    [
        (_result(), ""),
        (_result([]), ""),
        (_result([_text("3"), _text("4")]), "3\n4"),
        (_result("no", is_error=True), "Error: no"),
        (_result("yes", is_error=False), "yes"),
    ],
)
def test_result_is_a_text_that_marks_errors(result: dict[str, Any], content: str) -> None:
    *_, (_, message) = _messages(HELLO, CALLED, _user(result))
    assert message["content"] == content


def test_result_of_an_unknown_call_is_refused() -> None:
    with pytest.raises(InvalidField, match='must be the id of an earlier tool_use block; given "t1"') as caught:
        _messages(HELLO, {"role": "assistant", "content": "c"}, _user(_text("x"), _result("3")))
    assert caught.value.param == "messages[2].content[1].tool_use_id"
