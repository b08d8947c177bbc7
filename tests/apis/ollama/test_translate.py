"""Ollama's bodies translated to those of chats and text completions."""

import json
import math
from typing import Any

import pytest

from genai_server.apis.ollama.schemas import GenerateRequest
from genai_server.apis.ollama.schemas import OllamaChatRequest as ChatRequest
from genai_server.apis.ollama.translate import Raw, Translation
from genai_server.errors import InvalidField
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.http.error_responses import named

ADD = {"function": {"name": "add", "arguments": {"a": 1}}}


def chat(*messages: Any, **fields: Any) -> ChatParameters:
    found = Translation(ChatRequest.model_validate({"messages": list(messages), **fields}), "m").body
    assert isinstance(found, ChatParameters)
    return found


def question(**fields: Any) -> Any:
    return Translation(GenerateRequest.model_validate({"prompt": "say hi", **fields}), "m").body


@pytest.mark.parametrize(
    ("options", "num_penalized"),
    [
        ({"repeat_penalty": 1.1}, 64),
        ({"presence_penalty": 0.5}, 64),
        ({"frequency_penalty": 0.5}, 64),
        ({"repeat_penalty": 1.1, "repeat_last_n": 7}, 7),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, 0),
        ({"repeat_penalty": 1.1, "repeat_last_n": -1}, -1),
        ({"repeat_last_n": 3.0}, 3),
        ({"temperature": 1}, None),
        ({}, None),
    ],
)
def test_penalties_look_at_the_last_64_tokens_by_default(options: dict[str, float], num_penalized: int | None) -> None:
    assert question(options=options).repeat_last_n == num_penalized


def test_options_next_to_options_are_honoured() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "stop": ["x"], "seed": 3}
    found = question(**fields, max_output_tokens=7)
    assert {name: getattr(found, name) for name in fields} == fields
    assert found.max_tokens == question(max_tokens=7).max_tokens == 7
    assert question(raw=True, repeat_penalty=1.1).repeat_last_n == 64


def test_options_go_before_the_same_next_to_them_which_are_named() -> None:
    fields = {"temperature": 0.5, "top_k": 3, "max_tokens": 7, "options": {"temperature": 1.0, "top_k": 3}}
    translation = Translation(GenerateRequest.model_validate({"prompt": "x", **fields}), "m")
    assert (translation.body.temperature, translation.body.top_k, translation.body.max_tokens) == (1.0, 3, 7)
    assert translation.overridden == ["temperature"]


@pytest.mark.parametrize(
    "choice",
    ["auto", "none", "required", {"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}],
)
def test_tool_choice_is_that_of_chats(choice: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = chat({"role": "user", "content": "x"}, tools=tools, tool_choice=choice).model_dump()["tool_choice"]
    assert found == (choice if isinstance(choice, str) else {"type": "function", "function": {"name": "f"}})


@pytest.mark.parametrize(
    ("given", "text"),
    [({"a": "ä"}, '{"a": "ä"}'), ('{"a": ', '{"a": '), (None, "{}"), ([1], "[1]"), ({"a": math.nan}, '{"a": NaN}')],
)
def test_arguments_of_a_call_in_the_history_are_text(given: Any, text: str) -> None:
    function = {"name": "f", "arguments": given}
    (message,) = chat({"role": "assistant", "tool_calls": [{"function": function}]}).messages
    assert [call.function.arguments for call in message.tool_calls or ()] == [text]


def test_a_prompt_is_a_question_unless_it_is_raw_or_has_a_suffix() -> None:
    raw = question(raw=True)
    assert isinstance(raw, Raw)
    assert (raw.prompts, raw.max_tokens, raw.default_max_tokens) == (["say hi"], None, None)
    asked = question(system="Be brief.")
    assert [(one.role, one.content) for one in asked.messages] == [("system", "Be brief."), ("user", "say hi")]
    infill = question(suffix="end")
    assert (isinstance(infill, Raw), infill.suffix) == (True, "end")


@pytest.mark.parametrize(
    ("given", "effort"),
    [(None, None), (True, "medium"), (False, "none"), ("low", "low"), ("max", "max"), ("none", "none")],
)
def test_thinking_is_effort(given: Any, effort: str | None) -> None:
    assert chat({"role": "user", "content": "x"}, think=given).reasoning_effort == effort


def test_a_format_is_a_response_format() -> None:
    schema = {"type": "object", "properties": {}}
    for given, wanted in (("json", "json_object"), (schema, "json_schema"), ("", None)):
        form = chat({"role": "user", "content": "x"}, format=given).response_format
        assert (form and form.type) == wanted
    assert question(raw=True, format="json").structured_outputs is not None


def test_results_without_id_match_calls_by_tool_and_order() -> None:
    times = {"function": {"name": "times", "arguments": {}}}
    _, calling, *results = chat(
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [ADD, times, ADD]},
        {"role": "tool", "content": "one", "tool_name": "times"},
        {"role": "tool", "content": "two"},
        {"role": "tool", "content": "three", "tool_name": "add"},
        {"role": "tool", "content": "of no call"},
    ).messages
    calls = calling.tool_calls or []
    assert [call.function.arguments for call in calls] == [json.dumps({"a": 1}), "{}", json.dumps({"a": 1})]
    ids = [call.id for call in calls]
    assert [one.tool_call_id for one in results[:3]] == [ids[1], ids[0], ids[2]]
    assert [one.name for one in results] == ["times", "add", "add", None]
    assert len({*ids, results[3].tool_call_id}) == 4


def test_given_ids_and_thoughts_are_kept() -> None:
    found = chat(
        {"role": "assistant", "thinking": "so", "tool_calls": [{"id": "call_1", **ADD}]},
        {"role": "tool", "content": "2", "tool_call_id": "call_1"},
    )
    assert found.messages[0].reasoning_content == "so"
    assert (found.messages[0].tool_calls or [])[0].id == found.messages[1].tool_call_id == "call_1"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("max_tokens", "options.num_predict"),
        ("response_format.json_schema.schema", "format"),
        ("reasoning_effort", "think"),
        ("messages", "prompt"),
        ("messages[0].content", "system"),
        ("messages[1]", "prompt"),
        ("structured_outputs.json", "format"),
    ],
)
def test_fields_are_named_as_in_the_body(path: str, name: str) -> None:
    body = GenerateRequest.model_validate({"prompt": "x", "system": "y"})
    assert Translation(body, "m").names.name(path) == name


def test_thinking_is_shown_as_the_client_wrote_it() -> None:
    body = GenerateRequest.model_validate({"prompt": "x", "think": True})
    error = InvalidField("reasoning_effort", "has no effect", given="medium")
    assert named(error, Translation(body, "m").names) == ("think has no effect; given true", "think")


def _urls(*urls: str) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": url}} for url in urls]


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (
            {"content": "what?", "images": ["AA==", "data:image/png;base64,BB=="]},
            [*_urls("data:;base64,AA==", "data:image/png;base64,BB=="), {"type": "text", "text": "what?"}],
        ),
        ({"images": ["AA=="]}, _urls("data:;base64,AA==")),
    ],
)
def test_images_are_parts_before_the_text(message: dict[str, Any], content: list[Any]) -> None:
    (found,) = chat({"role": "user", **message}).messages
    assert found.model_dump(exclude_none=True)["content"] == content


def test_images_of_prompts_and_tools_belong_to_their_messages() -> None:
    _, asked = question(system="s", images=["AA=="]).messages
    content = asked.model_dump(exclude_none=True)["content"]
    assert content == [*_urls("data:;base64,AA=="), {"type": "text", "text": "say hi"}]
    asking = {"role": "assistant", "tool_calls": [ADD]}
    _, result = chat(asking, {"role": "tool", "content": "x", "images": ["AA=="]}).messages
    assert [index for index, _ in result.media] == [0]


def test_errors_of_images_name_the_clients_list() -> None:
    images = ["AA==", "BB=="]
    body = ChatRequest.model_validate({"messages": [{"role": "user"}, {"role": "user", "images": images}]})
    name = Translation(body, "m").names.name
    assert name("messages[1].content[1].image_url.url") == "messages[1].images[1]"
    assert name("messages[1].content[0]") == "messages[1].images[0]"
    name = Translation(GenerateRequest.model_validate({"system": "s", "prompt": "x", "images": images}), "m").names.name
    assert name("messages[1].content[1].image_url.url") == "images[1]"
    assert name("messages[1].content") == "prompt"
