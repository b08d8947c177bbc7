"""What Anthropic's client may send, found from the types of its package, so that a new version shows what is new."""

from typing import Any, get_args

import anthropic.types.beta as beta_types
import pytest
from anthropic import types
from anthropic.types import message_create_params, tool_result_block_param
from anthropic.types.beta import beta_tool_result_block_param
from anthropic.types.beta import message_create_params as beta_message_create_params
from typing_extensions import get_type_hints

from genai_server.apis.messages.leniency import LEFT_OUT, SERVER_TOOLS, convert
from genai_server.apis.messages.schemas import MessagesRequest, ToolType
from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER
from tests.running_server import RunningServer
from tests.sdk_examples import Examples, by_kind, fields, members

USER = {"role": "user", "content": "say hi"}
CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
ADDRESSES = {"url": "https://a.example/a.png", "data": "AA=="}
# Blocks that have a form here: neither left out nor converted.
AS_THEY_ARE = {"text", "image", "document", "thinking", "tool_use", "tool_result"}
# Blocks that say nothing that can be read.
UNREADABLE = {"redacted_thinking"}
# Fields that are refused, because each asks for another answer than a message.
REFUSED = {"compaction", "thread"}
# Options of the client that it sends as headers.
NOT_IN_THE_BODY = {"betas"}


def _example(member: Any) -> tuple[dict[str, Any], Examples]:
    """An object of this type with its required fields, and the marks of its texts."""
    examples = Examples(ADDRESSES, only_required=True)
    return examples.of(member), examples


def _whole(member: Any) -> dict[str, Any]:
    """An object of this type with all its fields."""
    examples = Examples(ADDRESSES, only_required=True)
    return {name: examples.of(hint, name) for name, hint in fields(member).items()}


BLOCKS = by_kind(types.ContentBlockParam, beta_types.BetaContentBlockParam)
PARTS = by_kind(tool_result_block_param.Content, beta_tool_result_block_param.Content)
TOOLS = by_kind(types.ToolUnionParam, beta_types.BetaToolUnionParam)


def _messages(kind: str, block: Any) -> list[Any]:
    if kind == "tool_result":
        return [
            {"role": "assistant", "content": [{**CALL, "id": block["tool_use_id"]}]},
            {"role": "user", "content": [block]},
        ]
    role = "user" if kind in ("image", "document") else "assistant"
    return [{"role": role, "content": [block]}]


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_every_block_is_read_or_named(scripted: RunningServer, kind: str) -> None:
    block, _ = _example(BLOCKS[kind])
    messages = _messages(kind, block)
    response = scripted.client.post("/v1/messages", json={"max_tokens": 20, "messages": [*messages, USER]})
    assert response.status_code == 200, response.text
    named = f"{response.headers.get(CONVERTED_HEADER, '')} {response.headers.get(IGNORED_HEADER, '')}"
    place = f"messages[{len(messages) - 1}].content[0] ({kind}"
    assert (place in named) == (kind not in AS_THEY_ARE - {"image", "document"})


@pytest.mark.parametrize("kind", sorted(set(BLOCKS) - AS_THEY_ARE - UNREADABLE))
def test_the_text_of_a_converted_block_stays(kind: str) -> None:
    block, examples = _example(BLOCKS[kind])
    body: Any = {"max_tokens": 5, "messages": [{"role": "assistant", "content": [block]}, USER]}
    convert(body)
    MessagesRequest.model_validate(body)
    texts = [mark for mark, field in examples.marks.items() if field != "tool_use_id"]
    assert not texts or any(mark in str(body["messages"][0]["content"][0]) for mark in texts)


@pytest.mark.parametrize("kind", sorted(PARTS))
def test_every_part_of_a_result_is_read_or_named(scripted: RunningServer, kind: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [_example(PARTS[kind])[0]]}
    messages = [USER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [result]}]
    response = scripted.client.post("/v1/messages", json={"max_tokens": 20, "messages": messages})
    assert response.status_code == 200, response.text
    named = f"{response.headers.get(CONVERTED_HEADER, '')} {response.headers.get(IGNORED_HEADER, '')}"
    assert (f"messages[2].content[0].content[0] ({kind}" in named) == (kind != "text")


@pytest.mark.parametrize("kind", sorted(TOOLS))
def test_every_tool_is_a_function_or_left_out(scripted: RunningServer, kind: str) -> None:
    tool = _example(TOOLS[kind])[0] | {"type": kind}
    if kind == "custom":
        tool["input_schema"] = {"type": "object"}
    response = scripted.client.post("/v1/messages", json={"max_tokens": 20, "messages": [USER], "tools": [tool]})
    assert response.status_code == 200, response.text
    if kind == "mcp_toolset":  # of a server that is not there
        assert response.headers[IGNORED_HEADER] == "tools (mcp_toolset)"
        return
    is_left_out = SERVER_TOOLS.fullmatch(kind) is not None
    assert is_left_out != (kind in get_args(ToolType))
    assert response.headers.get(IGNORED_HEADER, "") == (f"tools[0] ({kind})" if is_left_out else "")


@pytest.mark.parametrize("kind", sorted(set(TOOLS) & set(get_args(ToolType))))
def test_every_field_of_a_tool_is_accepted(scripted: RunningServer, kind: str) -> None:
    tool = _whole(TOOLS[kind]) | {"type": kind, "strict": False}
    if kind == "custom":
        tool["input_schema"] = {"type": "object"}
    response = scripted.client.post("/v1/messages", json={"max_tokens": 20, "messages": [USER], "tools": [tool]})
    assert response.status_code == 200, response.text


def test_every_field_of_a_request_is_known() -> None:
    given: set[str] = set()
    for params in (message_create_params, beta_message_create_params):
        for member in get_args(params.MessageCreateParams):
            given |= set(get_type_hints(member))
    known = set(MessagesRequest.model_fields) | set(LEFT_OUT.fields) | NOT_IN_THE_BODY
    assert given - known == REFUSED - {"thread"}
    assert {name for name in LEFT_OUT.fields if "." not in name} - given == {"safeguards"}


def test_every_kind_of_thinking_is_accepted(scripted: RunningServer) -> None:
    kinds = by_kind(types.ThinkingConfigParam, beta_types.BetaThinkingConfigParam)
    assert set(kinds) == {"enabled", "disabled", "adaptive", "between_tools"}
    for kind, member in kinds.items():
        thinking = _whole(member) | {"type": kind} | ({"budget_tokens": 1024} if kind == "enabled" else {})
        asked = {"max_tokens": 20, "messages": [USER], "thinking": thinking}
        response = scripted.client.post("/v1/messages", json=asked)
        assert response.status_code == 200, response.text
    displays = members(fields(beta_types.BetaThinkingConfigAdaptiveParam)["display"])
    assert {value for one in displays for value in get_args(one)} == {"summarized", "omitted", "updates"}
