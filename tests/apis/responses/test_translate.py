"""Requests for responses translated to chats."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from genai_server.apis.responses.items import message, new_item, to_messages, to_response_items
from genai_server.apis.responses.schemas import ResponsesRequest
from genai_server.apis.responses.translate import field_names, new_response, shortened, to_chat
from genai_server.errors import InvalidField
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.http.json_response import JsonObject
from genai_server.messages.generation_request import Sampling

TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": True}


def _chat(**fields: Any) -> ChatParameters:
    body = ResponsesRequest.model_validate({"input": "x", **fields})
    return to_chat(body, to_response_items(body.input, {}))


def test_instructions_are_a_system_message_before_all_others() -> None:
    chat = _chat(instructions="Be brief.", input=[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    messages = [(message.role, message.content) for message in chat.messages]
    assert messages == [("system", "Be brief."), ("system", "s"), ("user", "u")]


def test_tool_is_translated_to_the_chat() -> None:
    chat = _chat(tools=[TOOL], tool_choice={"type": "function", "name": "add"}).model_dump(exclude_none=True)
    function = {name: value for name, value in TOOL.items() if name != "type"}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "add"}}


def test_model_sees_only_the_allowed_tools() -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "sub"}]}
    chat = _chat(tools=[TOOL, {**TOOL, "name": "sub"}], tool_choice=allowed)
    assert [tool.function.name for tool in chat.tools or []] == ["sub"]
    assert chat.tool_choice == "required"


ADDS = [{**TOOL, "namespace": "math"}, {**TOOL, "namespace": "ints"}]
NAMED = {"type": "function", "name": "add"}


@pytest.mark.parametrize(
    ("tools", "named", "expected"),
    [
        (ADDS[:1], NAMED, "math__add"),
        (ADDS, {**NAMED, "namespace": "ints"}, "ints__add"),
        ([*ADDS, TOOL], {**NAMED, "namespace": "math"}, "math__add"),
    ],
)
def test_a_function_of_a_namespace_can_be_chosen(tools: Any, named: Any, expected: str) -> None:
    forced = _chat(tools=tools, tool_choice=named).model_dump()
    assert forced["tool_choice"] == {"type": "function", "function": {"name": expected}}
    allowed = _chat(tools=tools, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [named]})
    assert [tool.function.name for tool in allowed.tools or []] == [expected]


@pytest.mark.parametrize(
    ("tools", "named", "rule"),
    [
        (ADDS, NAMED, "2 tools have this name: add its namespace"),
        ([*ADDS[:1], TOOL], NAMED, "2 tools have this name: add its namespace"),
        (ADDS, {**NAMED, "namespace": "other"}, "is not in tools"),
        (ADDS, {**NAMED, "name": "sub"}, "is not in tools"),
    ],
)
def test_a_choice_that_is_not_one_function_is_refused(tools: Any, named: Any, rule: str) -> None:
    for choice in (named, {"type": "allowed_tools", "mode": "auto", "tools": [named]}):
        with pytest.raises(ValidationError, match=rule):
            _chat(tools=tools, tool_choice=choice)


@pytest.mark.parametrize("kind", ["text", "json_object"])
def test_format_without_a_schema_is_translated(kind: str) -> None:
    chat = _chat(text={"format": {"type": kind}}).model_dump(exclude_none=True)
    assert chat["response_format"] == {"type": kind}


def test_schema_is_translated_to_the_chat() -> None:
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    chat = _chat(text={"format": {"type": "json_schema", **schema}}).model_dump(exclude_none=True, by_alias=True)
    assert chat["response_format"] == {"type": "json_schema", "json_schema": schema}


def test_log_probabilities_are_asked_for_by_include() -> None:
    asked = _chat(include=["message.output_text.logprobs"], top_logprobs=3)
    assert (asked.logprobs, asked.top_logprobs) == (True, 3)
    assert _chat(top_logprobs=0).logprobs is None


@pytest.mark.parametrize(
    ("path", "param", "name"),
    [
        ("messages", "input", "input"),
        ("messages[0].content[0]", "input", "input (message 1).content[0]"),
        ("messages[0]", "input", "input (message 1)"),
        ("max_tokens", "max_output_tokens", "max_output_tokens"),
        ("response_format.json_schema.schema", "text.format.schema", "text.format.schema"),
        ("reasoning_effort", "reasoning.effort", "reasoning.effort"),
        ("thinking_token_budget", "reasoning.max_tokens", "reasoning.max_tokens"),
        ("structured_outputs", "structured_outputs", "structured_outputs"),
    ],
)
def test_a_field_of_the_chat_has_the_name_of_the_requests(path: str, param: str, name: str) -> None:
    names = field_names(_chat(), [], [], "conversation")
    assert (names.param(path), names.name(path)) == (param, name)


def test_instructions_count_among_the_4096_messages() -> None:
    turns = [{"role": "user", "content": "x"}] * 4096
    assert len(_chat(input=turns).messages) == 4096
    with pytest.raises(InvalidField, match="at most 4096 messages, .* given 4097") as caught:
        _chat(input=turns, instructions="Be brief.")
    assert caught.value.param == "input"


def test_ids_are_never_the_same() -> None:
    body = ResponsesRequest.model_validate({"input": "x"})
    ids = {new_response(body, model="m", sampling=Sampling(), created=1, is_stored=True)["id"] for _ in range(100)}
    assert len(ids) == 100
    assert all(len(id) == len("resp_") + 48 for id in ids)


def _said(role: str, text: str) -> JsonObject:
    return message(role, [{"type": "input_text", "text": text}])


def test_shortening_drops_the_oldest_turns() -> None:
    turns = [_said(role, f"{number}" * 50) for number in range(8) for role in ("user", "assistant")]
    conversation = [_said("system", "Be brief."), *turns]
    found = shortened(conversation, 0.5)
    assert found is not None
    assert found[0] == conversation[0]
    assert found[1:] == turns[-len(found) + 1 :]
    assert (found[1]["role"], 6 <= len(found) <= 9) == ("user", True)
    assert shortened(conversation, 0.0) == [conversation[0], *turns[-2:]]
    assert shortened(conversation[:2], 0.5) is None


def test_shortening_keeps_calls_with_their_outputs() -> None:
    calls: list[JsonObject] = []
    for id in map(str, range(6)):
        calls.append(new_item("function_call", call_id=id, name="f", arguments="{}"))
        calls.append({"type": "function_call_output", "id": "x", "call_id": id, "output": "x" * 100})
    user = _said("user", "Go on.")
    found = shortened([user, *calls], 0.5)
    assert found is not None
    assert found == [user, *calls[-len(found) + 1 :]]
    assert found[1]["type"] == "function_call"
    to_messages(found)


def test_a_custom_tool_is_a_function_with_one_text() -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "a|b"}
    tool = {"type": "custom", "name": "patch", "description": "d", "format": form}
    (tool_of_chat,) = _chat(tools=[tool], tool_choice={"type": "custom", "name": "patch"}).model_dump()["tools"]
    text = {"type": "string", "pattern": "^(?:a|b)$"}
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"]}
    expected = {"name": "patch", "description": "d", "parameters": parameters, "strict": True}
    assert tool_of_chat["function"] == expected
    with pytest.raises(ValidationError, match="names the custom tool"):
        _chat(tools=[tool], tool_choice={"type": "custom", "name": "other"})


def test_a_namespaces_description_precedes_the_functions_own() -> None:
    tool = {"type": "function", "name": "add", "namespace": "math", "namespace_description": "Numbers."}
    tools = [tool, {**tool, "name": "sub", "description": "Subtracts."}]
    translated = _chat(tools=tools).model_dump()["tools"]
    assert [one["function"]["description"] for one in translated] == ["Numbers.", "Numbers.\nSubtracts."]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"status": "completed"}, "completed"),
        ({"status": "completed", "output": "1 line changed"}, "1 line changed"),
        ({"status": "failed"}, "Error: failed"),
        ({"status": "failed", "output": "no such file"}, "Error: no such file"),
    ],
)
def test_result_of_a_patch_is_sent_to_the_model(output: dict[str, Any], expected: str) -> None:
    deletion = {"type": "delete_file", "path": "a.txt"}
    call = {"type": "apply_patch_call", "call_id": "1", "status": "completed", "operation": deletion}
    result = {"type": "apply_patch_call_output", "call_id": "1", **output}
    _, turn, message = _chat(input=[{"role": "user", "content": "x"}, call, result]).messages
    (called,) = turn.tool_calls or []
    assert json.loads(called.function.arguments) == {**deletion, "diff": ""}
    assert (message.role, message.content) == ("tool", expected)


PNG = "data:image/png;base64,iVBO"
IMAGE = {"type": "input_image", "image_url": PNG}


def test_errors_of_images_name_the_item_and_the_part() -> None:
    def items(*given: Any) -> list[JsonObject]:
        return to_response_items(ResponsesRequest.model_validate({"input": list(given)}).input, {})

    (earlier,) = items({"role": "user", "content": [IMAGE]})
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}, IMAGE]}
    given = items(call, output, {"role": "user", "content": [IMAGE, IMAGE]})
    chat = to_chat(ResponsesRequest.model_validate({"input": "x", "instructions": "s"}), [earlier, *given])
    name = field_names(chat, [earlier, *given], given, "conversation").name
    assert name("messages[1].content[0].image_url.url") == f"conversation (item {earlier['id']}).content[0].image_url"
    assert name("messages[3].content[1].image_url.url") == "input[1].output[1].image_url"
    assert name("messages[4].content[1]") == "input[2].content[1]"
    assert name("messages[4].name") == "input (message 5).name"


def test_an_image_counts_as_text_in_a_conversation_to_shorten() -> None:
    image = message("user", [{"type": "input_image", "detail": "auto", "image_url": "x" * 100_000}])
    texts = [message("user", [{"type": "input_text", "text": "x" * 5000}]) for _ in range(2)]
    assert shortened([*texts, image], 0.7) == [texts[1], image]
