"""Every type of item that OpenAI's package knows is accepted as history, and nothing is lost without being named.

The items are made from the package's types, so that a new version shows what is new.
"""

import json
from typing import Any

import httpx
import pytest
from openai.types.beta import BetaResponseInputItem
from openai.types.conversations import ConversationItem, message
from openai.types.responses import (
    ResponseFunctionCallOutputItem,
    ResponseInputContent,
    ResponseInputItem,
    ResponseOutputItem,
    response_output_message,
)

from genai_server.apis.responses.items import encrypted, to_response_items
from genai_server.apis.responses.leniency import LEFT_OUT, convert
from genai_server.apis.responses.schemas import ResponsesRequest
from genai_server.apis.responses.translate import name_conversions, to_chat
from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER, Leniency
from tests.running_server import RunningServer
from tests.sdk_examples import Examples, members

ITEMS = (ResponseInputItem, ResponseOutputItem, BetaResponseInputItem, ConversationItem)
PARTS = (ResponseInputContent, ResponseFunctionCallOutputItem, response_output_message.Content, message.Content)
# Types of items that this server has no form for.
FOREIGN = {
    *("agent_message", "code_interpreter_call", "compaction_trigger", "computer_call", "computer_call_output"),
    *("configuration_update", "file_search_call", "image_generation_call", "mcp_approval_request"),
    *("mcp_approval_response", "mcp_call", "mcp_list_tools", "multi_agent_call", "multi_agent_call_output"),
    *("program", "program_output", "web_search_call"),
}
FOREIGN_PARTS = {"computer_screenshot", "input_file", "reasoning_text", "refusal", "summary_text", "text"}
# Fields of which the model reads nothing, and which no header names: ids, sources, what describes tools that cannot be
# called and machines, and the summary of reasoning that is complete.
NOT_SAID = {
    *("id", "call_id", "agent_name", "container_id", "created_by", "fingerprint", "file_id", "filename", "token"),
    *("annotations", "description", "input_schema", "name", "namespace", "path", "summary"),
}
USER = {"role": "user", "content": "say hi"}


def _examples(unions: tuple[Any, ...]) -> list[Any]:
    found = {f"{one.__module__.rpartition('.')[2]}.{one.__name__}": one for union in unions for one in members(union)}
    return [pytest.param(one, id=name) for name, one in found.items()]


def _item(kind: Any) -> tuple[dict[str, Any], dict[str, str]]:
    examples = Examples()
    item = examples.of(kind)
    if item.get("role") == "unknown":  # of a conversation's message, which has more roles than input
        item["role"] = "assistant"
    if item.get("type") in ("function_call", "tool_search_call"):
        arguments = {"a": item["arguments"]}
        item["arguments"] = json.dumps(arguments) if item["type"] == "function_call" else arguments
    if item.get("type") == "reasoning":
        examples.marks |= {part["text"]: "summary" for part in item.get("summary") or []}
    return item, examples.marks


def _read(body: Any) -> tuple[str, str]:
    """What the model reads of a body, messages and tools, and all names in the headers."""
    leniency = Leniency(LEFT_OUT, convert=convert)
    leniency.apply(body)
    request = ResponsesRequest.model_validate(body)
    items = to_response_items(request.input, {})
    chat = to_chat(request, items)
    name_conversions(leniency, items, items, "conversation")
    messages = "\n".join(f"{message.for_template()}" for message in chat.messages)
    return f"{messages}\n{[tool.model_dump() for tool in chat.tools or []]}", " ".join(leniency.report().values())


@pytest.mark.parametrize("kind", _examples(ITEMS))
def test_nothing_of_an_item_is_lost_without_being_named(kind: Any) -> None:
    item, marks = _item(kind)
    if item.get("type") == "item_reference":
        return  # of an item of the store
    text, named = _read({"input": [item, USER]})
    lost = {field for mark, field in marks.items() if mark not in text} - NOT_SAID
    assert {field for field in lost if f".{field}" not in named} == set()
    if item.get("type") in FOREIGN:
        assert f"input[0] ({item['type']}" in named
    assert "input[1]" not in named


@pytest.mark.parametrize("kind", _examples(PARTS))
@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_parts_of_all_types_are_read_or_named(kind: Any, role: str) -> None:
    examples = Examples()
    part = examples.of(kind)
    name = part["type"]
    call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "1", "output": [part]}
    items = [call, output] if role == "tool" else [{"role": role, "content": [part]}]
    text, named = _read({"input": [*items, USER]})
    is_text = any(mark in text for mark, field in examples.marks.items() if field in ("text", "refusal"))
    assert is_text or name in ("input_image", "computer_screenshot") or "(file)" in named
    if name in FOREIGN_PARTS - {"input_file"} or (role == "tool" and name == "output_text"):
        assert f"[0] ({name} as text)" in named


def _answer(server: RunningServer, *items: Any, **fields: Any) -> httpx.Response:
    return server.client.post("/v1/responses", json={"input": [*items, USER], **fields})


@pytest.mark.parametrize("kind", _examples((ResponseInputItem,)))
def test_every_item_is_answered(scripted: RunningServer, strict: RunningServer, kind: Any) -> None:
    item, _ = _item(kind)
    if item.get("type") == "item_reference":
        return
    response = _answer(scripted, item)
    assert response.status_code == 200, response.text
    assert response.json()["output"][0]["content"][0]["text"] == "hi"
    # What loses nothing, a strict server accepts, too.
    if IGNORED_HEADER not in response.headers:
        assert _answer(strict, item).status_code == 200


SEARCH = {"type": "search", "query": "weather in Paris"}
WEB_SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": SEARCH}
SOMETHING_NEW = {"type": "quantum_call", "id": "q_1", "thought": "both"}
NOTE = '[web_search_call]\naction: {"type": "search", "query": "weather in Paris"}'


@pytest.mark.parametrize("stream", [False, True])
def test_another_providers_items_are_named(scripted: RunningServer, stream: bool) -> None:
    response = _answer(scripted, USER, WEB_SEARCH, SOMETHING_NEW, stream=stream)
    assert response.status_code == 200
    assert response.headers[CONVERTED_HEADER] == "input[1] (web_search_call as text), input[2] (quantum_call as text)"
    assert IGNORED_HEADER not in response.headers


def test_another_providers_items_are_kept_and_named_in_every_turn(scripted: RunningServer) -> None:
    id = _answer(scripted, WEB_SEARCH).json()["id"]
    listed = scripted.client.get(f"/v1/responses/{id}/input_items?order=asc").json()["data"]
    assert listed[0] == WEB_SEARCH
    later = scripted.client.post("/v1/responses", json={"input": "say x", "previous_response_id": id})
    assert later.headers[CONVERTED_HEADER] == "previous_response_id (item ws_1) (web_search_call as text)"
    counted = scripted.client.post("/v1/responses/input_tokens", json={"input": [WEB_SEARCH, USER]})
    assert counted.json()["input_tokens"] == len(f"{NOTE}\nsay hi\n") + 1
    assert counted.headers[CONVERTED_HEADER] == "input[0] (web_search_call as text)"


def test_a_conversation_keeps_another_providers_items(scripted: RunningServer) -> None:
    created = scripted.client.post("/v1/conversations", json={"items": [WEB_SEARCH]}).json()
    path = f"/v1/conversations/{created['id']}/items"
    assert scripted.client.get(path).json()["data"] == [WEB_SEARCH]
    added = scripted.client.post(path, json={"items": [{**SOMETHING_NEW, "id": None}, {**USER, "parsed": 1}]})
    assert added.headers[IGNORED_HEADER] == "items[].parsed"
    new, _ = added.json()["data"]
    assert {**new, "id": "q_1"} == SOMETHING_NEW
    response = scripted.client.post("/v1/responses", json={"input": "say x", "conversation": created["id"]})
    assert response.headers[CONVERTED_HEADER] == (
        f"conversation (item ws_1) (web_search_call as text), conversation (item {new['id']}) (quantum_call as text)"
    )


def test_what_configures_later_requests_is_left_out_and_named(scripted: RunningServer) -> None:
    update = {"type": "configuration_update", "id": "cu_1", "reasoning": {"effort": "low"}}
    response = _answer(scripted, USER, update)
    assert response.headers[IGNORED_HEADER] == "input[1] (configuration_update)"
    assert response.json()["usage"]["input_tokens"] == len("say hi\nsay hi\n") + 1


def test_what_another_server_has_encrypted_is_left_out_and_named(
    scripted: RunningServer, strict: RunningServer
) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABo-x_y="}
    response = _answer(scripted, thought, {**thought, "type": "compaction", "id": "cmp_1"})
    assert response.status_code == 200
    assert response.headers[IGNORED_HEADER] == "input[0].encrypted_content, input[1].encrypted_content"
    assert _answer(strict, thought).json()["error"]["param"] == "input[0].encrypted_content"


def test_what_this_server_has_encrypted_is_read() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encrypted("think of hi")}
    text, named = _read({"input": [thought, {"role": "assistant", "content": "hi"}, USER]})
    assert "think of hi" in text
    assert named == ""


def test_an_output_whose_call_has_been_cut_off_is_a_text(scripted: RunningServer) -> None:
    output = {"type": "function_call_output", "call_id": "call_0", "output": "21 degrees"}
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    response = _answer(scripted, output, {**output, "output": [{"type": "input_text", "text": "seen:"}, image]})
    assert response.status_code == 200, response.text
    form = "(output of an unknown call, as text)"
    assert response.headers[CONVERTED_HEADER] == f"input[0] {form}, input[1] {form}"
    assert response.headers[IGNORED_HEADER] == "input[1].output[1] (image)"


def test_stored_images_are_left_out_of_history_and_refused_in_what_is_asked(scripted: RunningServer) -> None:
    image = {"type": "input_image", "file_id": "file-1", "image_url": None, "detail": "auto"}
    response = _answer(scripted, {"role": "user", "content": [image]})
    assert (response.status_code, response.headers[IGNORED_HEADER]) == (200, "input[0].content[0] (image)")
    asked = scripted.client.post("/v1/responses", json={"input": [{"role": "user", "content": [image]}]})
    assert (asked.status_code, asked.json()["error"]["param"]) == (400, "input[0].content[0].file_id")
