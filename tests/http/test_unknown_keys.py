"""Unknown keys of a conversation's history are left out and named, and nothing else is."""

from copy import deepcopy
from typing import Annotated, Any, Literal

import pytest

from genai_server.generation.parameters.base import StrictModel, TaggedUnion
from genai_server.generation.parameters.chat_messages import ChatMessage
from genai_server.http.error_wording import FieldNames
from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER, Leniency, remove_unknown_keys
from tests.running_server import RunningServer

CALL = {"id": "call_1", "type": "function", "index": 0}
CALL |= {"function": {"name": "f", "arguments": "{}", "parsed": {"a": 1}}}
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


NAMED = ["messages[].parsed", "messages[].tool_calls[].index", "messages[].tool_calls[].function.parsed"]


def test_keys_are_named_once_however_many_objects_have_them() -> None:
    body = {"messages": [deepcopy(ANSWER), deepcopy(ANSWER)]}
    assert remove_unknown_keys(body, "messages[]", ChatMessage) == NAMED
    for message in body["messages"]:
        ChatMessage.model_validate(message)


FREE: dict[str, Any] = {"type": "leaf", "free": {"any": 1}}


@pytest.mark.parametrize(
    ("item", "form", "named", "left"),
    [
        ({"leaves": [FREE | {"x": 1}], "free": 1}, Tree, ["items[].free", "items[].leaves[].x"], {"leaves": [FREE]}),
        ({"type": "root", "x": 1}, Tree, [], {"type": "root", "x": 1}),
        ({**USER, "a\r\nset-cookie: b": 1}, ChatMessage, ["items[].(a key)"], USER),
    ],
    ids=["by its type", "an unknown type is left for validation", "no name"],
)
def test_unknown_keys_of_an_object_are_removed(item: Any, form: Any, named: list[str], left: Any) -> None:
    body = {"items": [deepcopy(item)]}
    assert remove_unknown_keys(body, "items[]", form) == named
    assert body == {"items": [left]}


def test_the_number_of_named_keys_has_a_limit() -> None:
    body = {"messages": [{**USER, f"key{n}": 1} for n in range(1000)]}
    assert len(remove_unknown_keys(body, "messages[]", ChatMessage)) == 32
    assert body == {"messages": [USER] * 1000}


def test_what_is_converted_is_named_apart_from_what_is_left_out() -> None:
    leniency = Leniency()
    with leniency.with_names(FieldNames({"messages": "input"})):
        leniency.note([("messages[1].content", ""), "messages"])
        leniency.convert([("messages[2]", " (as text)")])
    assert leniency.report() == {IGNORED_HEADER: "input[1].content, messages", CONVERTED_HEADER: "input[2] (as text)"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/chat", "/tokenize"])
def test_history_with_unknown_keys_is_answered(scripted: RunningServer, path: str) -> None:
    calls = {**ANSWER, "tool_calls": [CALL]}
    response = scripted.client.post(path, json={"messages": [USER, calls, RESULT, USER]})
    assert (response.status_code, response.headers[IGNORED_HEADER]) == (200, ", ".join(NAMED))
