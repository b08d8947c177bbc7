"""Anthropic's bodies translated to chat parameters, and errors translated back."""

import json
from typing import Any

import pytest

from genai_server.apis.messages.schemas import CountTokensRequest, MessagesRequest
from genai_server.apis.messages.tools import OfferedTools
from genai_server.apis.messages.translate import Translation, Turns
from genai_server.errors import InvalidField
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.http.error_responses import named

HELLO = {"role": "user", "content": "x"}
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}, "strict": True}


def _translation(**fields: Any) -> Translation:
    return Translation(MessagesRequest.model_validate({"max_tokens": 5, "messages": [HELLO], **fields}))


def _chat(**fields: Any) -> ChatParameters:
    return _translation(**fields).chat


def test_a_tool_is_a_function() -> None:
    (tool,) = _chat(tools=[TOOL]).tools or []
    assert tool.function.model_dump() == {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object"},
        "strict": True,
    }


@pytest.mark.parametrize(
    ("given", "chosen", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any"}, "required", None),
        ({"type": "none"}, "none", None),
        (
            {"type": "tool", "name": "add", "disable_parallel_tool_use": True},
            {"type": "function", "function": {"name": "add"}},
            False,
        ),
    ],
)
def test_the_choice_of_tools_has_openais_name(given: Any, chosen: Any, parallel: bool | None) -> None:
    chat = _chat(tools=[TOOL], tool_choice=given)
    assert (chat.model_dump()["tool_choice"], chat.parallel_tool_calls) == (chosen, parallel)


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "enabled"}}, "high"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "between_tools"}}, "none"),
        ({"output_config": {"effort": "low"}}, "low"),
        ({"thinking": {"type": "enabled"}, "output_config": {"effort": "low"}}, "low"),
    ],
)
def test_thinking_is_effort(fields: dict[str, Any], effort: str | None) -> None:
    assert _chat(**fields).reasoning_effort == effort


def test_the_format_of_the_output_is_the_response_format() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    wanted = _chat(output_config={"format": form}).response_format
    assert wanted == _chat(output_format=form).response_format
    assert wanted is not None
    assert wanted.json_schema is not None
    assert wanted.json_schema.schema_ == form["schema"]


@pytest.mark.parametrize(
    ("fields", "path", "name"),
    [
        ({}, "response_format.json_schema.schema", "output_config.format.schema"),
        ({"output_format": {"type": "json_schema", "schema": {}}}, "response_format", "output_format"),
        ({"thinking": {"type": "enabled"}}, "reasoning_effort", "thinking.type"),
        ({"output_config": {"effort": "low"}}, "reasoning_effort", "output_config.effort"),
        ({"system": "s"}, "messages[1].content", "messages[0].content"),
        ({"system": "s"}, "messages[0]", "system"),
        (
            {"messages": [HELLO, HELLO, {"role": "assistant", "content": "y"}]},
            "chat_template_kwargs.continue_final_message",
            "messages[2].continue_final_message",
        ),
        ({}, "chat_template_kwargs", "messages[0]"),
        ({}, "max_tokens", "max_tokens"),
    ],
)
def test_a_field_of_the_chat_has_the_name_of_the_bodys(fields: dict[str, Any], path: str, name: str) -> None:
    assert _translation(**fields).names.name(path) == name


def test_the_effort_of_enabled_thinking_is_shown_as_the_client_wrote_it() -> None:
    names = _translation(thinking={"type": "enabled"}).names
    error = InvalidField("reasoning_effort", "has no effect", given="high")
    assert named(error, names) == ('thinking.type has no effect; given "enabled"', "thinking.type")


def test_conversation_is_limited_to_4096_turns_with_tool_results() -> None:
    def messages(num_results: int) -> list[Any]:
        call = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
        return [HELLO, {"role": "assistant", "content": [call]}, _user(*[_result("2")] * num_results)]

    assert len(_chat(messages=messages(4094)).messages) == 4096
    with pytest.raises(InvalidField, match="at most 4096 turns, .* given 4097") as caught:
        _chat(messages=messages(4095))
    assert caught.value.param == "messages"


def _messages(*messages: dict[str, Any], **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    return _turns(*messages, **fields).messages


def _turns(*messages: dict[str, Any], **fields: Any) -> Turns:
    body = CountTokensRequest.model_validate({"messages": list(messages), **fields})
    return Turns(body, OfferedTools(body))


def _user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _result(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **fields}


CALLED = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "add them", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        _text("I add."),
        {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": "ä", "b": [1, None]}},
    ],
}


@pytest.mark.parametrize("system", ["Be brief.", [_text("Be"), _text("brief.")]])
def test_the_system_prompt_is_the_first_message_unless_it_is_empty(system: Any) -> None:
    (place, first), _ = _messages(HELLO, system=system)
    assert (place, first["role"], first["content"].split()) == ("system", "system", ["Be", "brief."])
    assert len(_messages(HELLO, system=type(system)())) == 1


def test_neighbouring_messages_of_one_role_become_one_turn() -> None:
    found = _messages(HELLO, _user(_text("a"), _text("b")), {"role": "assistant", "content": "c"}, HELLO)
    assert found == [
        ("messages[0]", {"role": "user", "content": "x\na\nb"}),
        ("messages[2]", {"role": "assistant", "content": "c"}),
        ("messages[3]", {"role": "user", "content": "x"}),
    ]


def test_assistant_turn_has_reasoning_and_calls_next_to_its_text() -> None:
    turns = _turns(HELLO, CALLED, _user(_result("3"), _text("Thanks.")))
    _, (_, turn), (place, result), (_, text) = turns.messages
    (call,) = turn.pop("tool_calls")
    assert turn == {"role": "assistant", "content": "I add.", "reasoning_content": "add them"}
    assert (call["id"], call["type"], call["function"]["name"]) == ("t1", "function", "add")
    assert json.loads(call["function"]["arguments"]) == {"a": "ä", "b": [1, None]}
    # Encrypted thinking is left out, and the result is a message before the user's text.
    assert turns.left_out == ["messages[1].content[1] (redacted_thinking)"]
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


def test_result_without_its_call_is_text_of_the_user() -> None:
    results = _user(_text("x"), _result([_text("3")]), _result("4", is_error=True))
    turns = _turns(HELLO, {"role": "assistant", "content": "c"}, results)
    text = "x\n[tool_result]\n3\n[tool_result]\nError:\n4"
    assert turns.messages[-1] == ("messages[2]", {"role": "user", "content": text})
    form = "(tool_result without its call, as text)"
    assert turns.converted == [f"messages[2].content[1] {form}", f"messages[2].content[2] {form}"]


@pytest.mark.parametrize(("summary", "text"), [("They met.", "They met."), (None, "")])
def test_a_summary_of_earlier_messages_is_its_text(summary: str | None, text: str) -> None:
    turns = _turns({"role": "assistant", "content": [{"type": "compaction", "content": summary}]}, HELLO)
    assert turns.messages[0] == ("messages[0]", {"role": "assistant", "content": text})
    assert turns.converted == ["messages[0].content[0] (compaction as text)"]


@pytest.mark.parametrize(("clear_at", "stays"), [("next_user_message", False), ("never", True), (None, True)])
def test_a_system_message_may_be_for_one_turn(clear_at: str | None, stays: bool) -> None:
    reminder = {"role": "system", "content": "Be brief.", "clear_at": clear_at}
    assert [message["role"] for _, message in _messages(HELLO, reminder)] == ["user", "system"]
    roles = [message["role"] for _, message in _messages(HELLO, reminder, {"role": "assistant", "content": "c"}, HELLO)]
    assert roles == ["user", *(["system"] if stays else []), "assistant", "user"]


def test_calls_at_the_end_are_complete() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
    chat = _chat(messages=[HELLO, {"role": "assistant", "content": [call]}], tools=[TOOL])
    assert chat.chat_template_kwargs is None
    assert chat.messages[-1].tool_calls is not None


PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
REMOTE = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
REMOTE_PART = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
LOOK: dict[str, Any] = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}],
}


def test_images_stay_in_their_places_between_joined_texts() -> None:
    blocks = [_text("a"), _text("b"), PNG, REMOTE, _text("c")]
    ((_, message),) = _messages(_user(*blocks))
    assert message["content"] == [_text("a\nb"), PNG_PART, REMOTE_PART, _text("c")]


@pytest.mark.parametrize(("is_error", "before"), [(False, []), (True, [_text("Error: ")])])
def test_images_of_a_tool_result_are_parts(is_error: bool, before: list[Any]) -> None:
    found = _messages(LOOK, _user(_result([PNG, _text("x")], is_error=is_error)))
    assert found[-1][1]["content"] == [*before, PNG_PART, _text("x")]


def _document(source: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **fields}


def _content_of(*blocks: Any) -> dict[str, Any]:
    return {"type": "content", "content": [*blocks]}


@pytest.mark.parametrize(
    ("document", "content"),
    [
        (_document({"type": "text", "media_type": "text/plain", "data": "a"}), "a"),
        (_document({"type": "text", "data": "a"}, title="T", context="C"), "T\nC\na"),
        (_document({"type": "content", "content": "a"}, title=None), "a"),
        (_document(_content_of(_text("a"), _text("b"))), "a\nb"),
        (_document(_content_of(_text("a"), PNG, _text("b")), title="T"), [_text("T\na"), PNG_PART, _text("b")]),
    ],
)
def test_a_document_becomes_its_title_text_and_images(document: Any, content: Any) -> None:
    (_, alone), _, (_, of_a_result) = _messages(_user(document), LOOK, _user(_result([document])))
    assert (alone["content"], of_a_result["content"]) == (content, content)


def test_errors_of_images_name_the_clients_block() -> None:
    document = _document(_content_of(_text("a"), PNG), title="T")
    of_documents = _translation(messages=[_user(document, REMOTE), LOOK, _user(_result([_text("x"), document]))])
    result = _result([_text("x"), REMOTE], is_error=True)
    messages = [_user(_text("x")), _user(_text("a"), _text("b"), PNG), LOOK, _user(result, PNG)]
    of_messages = _translation(system="s", messages=messages)
    for translation, path, name in (
        (of_documents, "messages[0].content[1]", "messages[0].content[0].source.content[1]"),
        (of_documents, "messages[0].content[2].image_url.url", "messages[0].content[1].source.url"),
        (
            of_documents,
            "messages[2].content[1].image_url.url",
            "messages[2].content[0].content[1].source.content[1].source.data",
        ),
        (of_messages, "messages[1].content[1].image_url.url", "messages[1].content[2].source.data"),
        (of_messages, "messages[1].content[1]", "messages[1].content[2]"),
        (of_messages, "messages[3].content[2].image_url.url", "messages[3].content[0].content[1].source.url"),
        (of_messages, "messages[4].content[0].image_url.url", "messages[3].content[1].source.data"),
    ):
        assert translation.names.name(path) == name
