"""Unknown keys of a conversation's history are left out and named, and nothing else is."""

from copy import deepcopy
from typing import Annotated, Any, Literal

import pytest

from genai_server.generation.parameters.base import StrictModel, TaggedUnion
from genai_server.generation.parameters.chat_messages import ChatMessage
from genai_server.http.error_wording import FieldNames
from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER, Leniency, remove_unknown_keys
from tests.running_server import RunningServer

CALL = {
    "id": "call_1",
    "type": "function",
    "index": 0,
    "function": {"name": "f", "arguments": "{}", "parsed": {"a": 1}},
}
ANSWER = {"role": "assistant", "content": None, "parsed": {"a": 1}, "opts": None, "tool_calls": [CALL, CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
USER = {"role": "user", "content": "say hi"}


class Leaf(StrictModel):
    type: Literal["leaf"]
    free: dict[str, Any] | None = None


class Branch(StrictModel):
    type: Literal["branch"] = "branch"
    leaves: list[Leaf] = []


Tree = Annotated[Leaf | Branch, TaggedUnion("tree")]


def test_keys_are_named_once_however_many_objects_have_them() -> None:
    body = {"messages": [deepcopy(ANSWER), deepcopy(ANSWER)]}
    assert remove_unknown_keys(body, "messages[]", ChatMessage) == [
        "messages[].parsed",
        "messages[].tool_calls[].index",
        "messages[].tool_calls[].function.parsed",
    ]
    for message in body["messages"]:
        ChatMessage.model_validate(message)


def test_the_form_of_an_object_is_that_of_its_type() -> None:
    body: Any = {"items": [{"leaves": [{"type": "leaf", "free": {"any": 1}, "x": 1}], "free": 1}]}
    assert remove_unknown_keys(body, "items[]", Tree) == ["items[].free", "items[].leaves[].x"]
    assert body == {"items": [{"leaves": [{"type": "leaf", "free": {"any": 1}}]}]}


def test_an_object_of_an_unknown_type_is_left_for_validation() -> None:
    body = {"items": [{"type": "root", "x": 1}]}
    assert remove_unknown_keys(body, "items[]", Tree) == []
    assert body == {"items": [{"type": "root", "x": 1}]}


def test_a_key_that_is_no_name_is_removed_and_not_repeated() -> None:
    body = {"messages": [{**USER, "a\r\nset-cookie: b": 1}]}
    assert remove_unknown_keys(body, "messages[]", ChatMessage) == ["messages[].(a key)"]
    assert body == {"messages": [USER]}


def test_the_number_of_named_keys_has_a_limit() -> None:
    body = {"messages": [{**USER, f"key{n}": 1} for n in range(1000)]}
    assert len(remove_unknown_keys(body, "messages[]", ChatMessage)) == 32
    assert body == {"messages": [USER] * 1000}


def test_what_is_converted_is_named_apart_from_what_is_left_out() -> None:
    leniency = Leniency()
    with leniency.with_names(FieldNames({"messages": "input"})):
        leniency.note([("messages[1].content", ""), "messages"])
        leniency.convert([("messages[2]", " (as text of the user)")])
    assert leniency.report() == {
        IGNORED_HEADER: "input[1].content, messages",
        CONVERTED_HEADER: "input[2] (as text of the user)",
    }


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat", "/tokenize"])
def test_history_with_unknown_keys_is_answered(scripted: RunningServer, path: str) -> None:
    calls = {**ANSWER, "tool_calls": [CALL]}
    response = scripted.client.post(path, json={"messages": [USER, calls, RESULT, USER]})
    assert response.status_code == 200
    assert response.headers[IGNORED_HEADER] == (
        "messages[].parsed, messages[].tool_calls[].index, messages[].tool_calls[].function.parsed"
    )
