"""Messages in the forms that chat templates need."""

from typing import Any

import pytest

from genai_server.errors import InvalidField
from genai_server.text.prompts.prompt import conversation_forms


def _forms(*messages: dict[str, Any], knows_developer: bool = False) -> list[list[dict[str, Any]]]:
    return list(conversation_forms(messages, knows_developer=knows_developer))


def _call(arguments: Any) -> dict[str, Any]:
    function = {"name": "add", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


def test_plain_messages_have_one_form_and_keep_all_their_fields() -> None:
    messages = [
        {"role": "user", "content": "hi", "name": "Ada"},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    ]
    assert _forms(*messages) == [messages]


def test_arguments_are_objects_or_texts_as_the_template_needs() -> None:
    forms = _forms({**_call('{"a": [1, "é"]}'), "content": "x"})
    assert [form[0]["tool_calls"][0]["function"]["arguments"] for form in forms] == [{"a": [1, "é"]}, '{"a": [1, "é"]}']
    assert forms[0][0]["tool_calls"][0]["id"] == "c1"


def test_missing_content_is_null_or_empty_as_the_template_needs() -> None:
    forms = _forms(_call("{}"))
    contents = [(form[0]["content"], form[0]["tool_calls"][0]["function"]["arguments"]) for form in forms]
    assert contents == [(None, {}), (None, "{}"), ("", {}), ("", "{}")]
    assert _forms({"role": "assistant"})[0] == [{"role": "assistant", "content": None}]


def test_object_and_empty_arguments_are_accepted() -> None:
    assert _forms({**_call({"a": 1}), "content": "x"})[0][0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert _forms(_call(""))[0][0]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("{a: 1}", "must be JSON: Expecting property name"),
        ("[1]", r'must be a JSON object; given "\[1\]"'),
        ("[" * 100_000, "must be JSON: "),
    ],
)
def test_arguments_that_are_not_a_json_object_are_refused(arguments: str, reason: str) -> None:
    with pytest.raises(InvalidField, match=reason) as caught:
        _forms({"role": "user", "content": "x"}, _call(arguments))
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


def test_calls_of_another_kind_stay_as_they_are() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "run", "input": "x"}}
    messages = [{"role": "assistant", "content": "x", "tool_calls": [call]}]
    assert _forms(*messages) == [messages]


def test_null_and_empty_fields_are_left_out_for_templates() -> None:
    message: dict[str, Any] = {"role": "assistant", "content": "x", "name": None, "tool_calls": [], "refusal": None}
    assert _forms(message) == [[{"role": "assistant", "content": "x"}]]


def test_a_content_in_parts_becomes_one_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert _forms({"role": "user", "content": parts})[0][0]["content"] == "one\ntwo"


@pytest.mark.parametrize("part", [{"type": "image_url"}, {"type": "text"}, {"type": "text", "text": 1}, "text"])
def test_part_that_is_not_text_is_refused_by_its_place(part: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        _forms({"role": "user", "content": [{"type": "text", "text": "x"}, part]})
    assert caught.value.param == "messages[0].content[1]"


@pytest.mark.parametrize(("knows_developer", "role"), [(False, "system"), (True, "developer")])
def test_a_developer_is_the_system_unless_the_template_knows_one(knows_developer: bool, role: str) -> None:
    message = {"role": "developer", "content": "x"}
    assert _forms(message, knows_developer=knows_developer)[0][0]["role"] == role
