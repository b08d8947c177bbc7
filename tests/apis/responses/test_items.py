"""Items of conversations: as sent, as stored and as chat messages."""

from typing import Any

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from genai_server.apis.responses.items import encrypted, to_messages, to_response_items
from genai_server.apis.responses.schemas import ResponsesRequest
from genai_server.errors import InvalidField
from genai_server.http.json_response import JsonObject

ITEMS: TypeAdapter[Any] = TypeAdapter(list[ResponseItem])
CALL = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "2"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]}
SAID = {"role": "assistant", "content": "I add."}


PNG = "data:image/png;base64,iVBO"
IMAGE = {"type": "input_image", "image_url": PNG, "detail": "low"}
TEXT = {"type": "input_text", "text": "x"}
# The same in a chat.
IMAGE_OF_CHAT = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
TEXT_OF_CHAT = {"type": "text", "text": "x"}


def _given(given: Any, kept: dict[str, JsonObject] | None = None) -> list[JsonObject]:
    return to_response_items(ResponsesRequest.model_validate({"input": given}).input, kept or {})


def _messages(*given: Any) -> list[dict[str, Any]]:
    return [message.for_template() for message in to_messages(_given(list(given)))]


def test_all_items_are_kept_in_a_form_that_openais_client_reads() -> None:
    items = _given(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "1 + 1?"}]},
            THOUGHT,
            CALL,
            OUTPUT,
            {**OUTPUT, "output": [{"type": "input_text", "text": "2"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "2", "annotations": []}]},
            {"role": "user", "content": [TEXT, IMAGE]},
            {**OUTPUT, "output": [{"type": "input_image", "image_url": PNG, "file_id": None}]},
        ]
    )
    read = ITEMS.validate_python(items)
    assert [item.type for item in read] == [item["type"] for item in items]
    assert {item.status for item in read} == {"completed"}
    assert len({item.id for item in read}) == len(items)


def test_an_item_that_comes_back_keeps_its_id_and_status() -> None:
    (item,) = _given([{**CALL, "id": "fc_7", "status": "incomplete"}])
    assert (item["id"], item["status"]) == ("fc_7", "incomplete")


def test_reference_resolves_to_its_item() -> None:
    kept = {"msg_1": {"id": "msg_1", "type": "message"}}
    assert _given([{"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}], kept) == [kept["msg_1"]] * 2
    with pytest.raises(InvalidField, match='"msg_2"') as unknown:
        _given([{"role": "user", "content": "hi"}, {"id": "msg_2"}], kept)
    assert unknown.value.param == "input[1].id"


def test_null_fields_that_openais_client_adds_are_accepted() -> None:
    added = {"id": "fc_1", "status": "completed", "namespace": None, "async_": None}
    output = {**OUTPUT, "caller": None, "namespace": None, "created_by": None}
    assert _messages({**CALL, **added, "caller": {"type": "direct"}}, output) == _messages(CALL, OUTPUT)
    assert _messages({**CALL, "caller": {"type": "program", "caller_id": "c"}}) == _messages(CALL)
    said = {"role": "assistant", "type": None, "content": None, "status": None, "phase": None}
    assert _messages(said) == [{"role": "assistant", "content": ""}]
    assert _messages({"type": "reasoning", "summary": None, "content": None, "encrypted_content": None}) == []


def test_namespaced_call_keeps_its_namespace_and_name_for_models() -> None:
    call = {**CALL, "namespace": "crm"}
    (kept,) = _given([call])
    assert (kept["name"], kept["namespace"]) == ("add", "crm")
    (turn,) = _messages(call)
    assert turn["tool_calls"][0]["function"]["name"] == "crm__add"


def test_reasoning_text_and_calls_of_one_turn_are_one_message() -> None:
    second = {"call_id": "call_2"}
    turn, *outputs = _messages(THOUGHT, SAID, CALL, CALL | second, OUTPUT, OUTPUT | second | {"name": "add"})
    assert (turn["reasoning_content"], turn["content"]) == ("so", "I add.")
    assert [call["id"] for call in turn["tool_calls"]] == ["call_1", "call_2"]
    assert turn["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert outputs == [
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
        {"role": "tool", "tool_call_id": "call_2", "content": "2", "name": "add"},
    ]


@pytest.mark.parametrize(
    ("item", "fields"),
    [
        (CALL, {"content": None}),
        (THOUGHT, {"content": "", "reasoning_content": "so"}),
        ({"type": "reasoning", "summary": [], "encrypted_content": encrypted("só")}, {"reasoning_content": "só"}),
        (
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": kind, "text": kind} for kind in ("text", "thinking", "reasoning_text")],
            },
            {"reasoning_content": "textthinkingreasoning_text"},
        ),
        (
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
            {"reasoning_content": "so"},
        ),
    ],
    ids=["call", "thought", "encrypted", "parts of any type", "summary alone"],
)
def test_a_lone_item_is_a_turn(item: dict[str, Any], fields: dict[str, Any]) -> None:
    (turn,) = _messages(item)
    assert turn == turn | fields


@pytest.mark.parametrize(
    ("items", "number"),
    [([SAID, SAID], 2), ([SAID, THOUGHT], 2), ([CALL, THOUGHT], 2), ([THOUGHT, THOUGHT], 1), ([CALL, SAID], 1)],
)
def test_a_new_thought_or_a_second_message_begins_a_new_turn(items: list[Any], number: int) -> None:
    assert len(_messages(*items)) == number


def test_output_of_an_unknown_call_is_refused() -> None:
    with pytest.raises(InvalidField, match='"call_1"') as refused:
        _messages({"role": "user", "content": "x"}, OUTPUT, CALL)
    assert refused.value.param == "input"


def test_what_another_server_has_encrypted_is_refused() -> None:
    with pytest.raises(InvalidField) as foreign:
        _given([{"type": "reasoning", "summary": [], "encrypted_content": "gAAA_-"}])
    assert foreign.value.param == "input[0].encrypted_content"


def test_an_image_without_a_detail_has_the_default() -> None:
    (kept,) = _given([{"role": "user", "content": [{"type": "input_image", "image_url": PNG}]}])
    assert kept["content"] == [{**IMAGE, "detail": "auto"}]


def test_images_stay_in_their_places_in_a_message() -> None:
    (message,) = to_messages(_given([{"role": "user", "content": [TEXT, TEXT, IMAGE, IMAGE, TEXT]}]))
    texts = {"type": "text", "text": "xx"}
    content = message.model_dump(exclude_none=True)["content"]
    assert content == [texts, IMAGE_OF_CHAT, IMAGE_OF_CHAT, TEXT_OF_CHAT]


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_images_of_a_tools_output_are_parts_of_its_message(kind: str) -> None:
    call = CALL if kind == "function_call" else {"type": kind, "call_id": "call_1", "name": "add", "input": "x"}
    *_, result = to_messages(_given([call, {**OUTPUT, "type": f"{kind}_output", "output": [IMAGE, TEXT]}]))
    assert (result.role, result.model_dump(exclude_none=True)["content"]) == ("tool", [IMAGE_OF_CHAT, TEXT_OF_CHAT])
