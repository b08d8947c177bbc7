"""What Anthropic's client may send, found from the types of its package, so that a new version shows what is new."""

from collections.abc import Iterator
from typing import Any, Required, Union, get_args, get_origin

import anthropic.types.beta as beta_types
import pytest
from anthropic import types
from anthropic.types import message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from pydantic import BaseModel
from typing_extensions import get_type_hints, is_typeddict

from genai_server.apis.messages.leniency import LEFT_OUT, SERVER_TOOLS, convert
from genai_server.apis.messages.schemas import MessagesRequest, ToolType
from genai_server.http.leniency import CONVERTED_HEADER, IGNORED_HEADER
from tests.running_server import RunningServer

USER = {"role": "user", "content": "say hi"}
CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
MARK = "heron"
# Blocks that have a form here: neither left out nor converted.
AS_THEY_ARE = {"text", "image", "document", "thinking", "tool_use", "tool_result"}
# Blocks that say nothing that can be read.
UNREADABLE = {"redacted_thinking"}
# Fields that are refused, because each asks for another answer than a message.
REFUSED = {"compaction", "thread"}
# Options of the client that it sends as headers.
NOT_IN_THE_BODY = {"betas"}


def _members(union: Any) -> Iterator[Any]:
    """The objects of a union."""
    if get_origin(union) is Union or (get_args(union) and not is_typeddict(union) and not _is_model(union)):
        for member in get_args(union):
            yield from _members(member)
    elif is_typeddict(union) or _is_model(union):
        yield union


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _fields(member: Any) -> dict[str, Any]:
    if _is_model(member):
        return {name: field.annotation for name, field in member.model_fields.items()}
    return get_type_hints(member)


def _types(*unions: Any) -> dict[str, Any]:
    """The objects of unions, keyed by their types."""
    found: dict[str, Any] = {}
    for union in unions:
        for member in _members(union):
            for value in _literals(_fields(member)["type"]):
                found.setdefault(value, member)
    return found


def _literals(annotation: Any) -> Iterator[str]:
    for argument in get_args(annotation):
        if isinstance(argument, str):
            yield argument
        else:
            yield from _literals(argument)


def _example(member: Any) -> Any:
    """An object of this type with its required fields, in which each text has the mark."""
    if _is_model(member):
        required = {name for name, field in member.model_fields.items() if field.is_required()}
    else:
        hints = get_type_hints(member, include_extras=True)
        required = {name for name, annotation in hints.items() if _is_required(annotation)}
    return {name: _value(annotation, name) for name, annotation in _fields(member).items() if name in required}


def _is_required(annotation: Any) -> bool:
    origin: Any = get_origin(annotation)
    return origin is Required


def _value(annotation: Any, name: str) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is str:
        return {"url": "https://a.example/a.png", "data": "AA=="}.get(name, f"{MARK}")
    if annotation in (int, bool, float):
        return annotation(5)
    if is_typeddict(annotation) or _is_model(annotation):
        return _example(annotation)
    if origin is dict or annotation is object or annotation is dict:
        return {"of": MARK}
    literals = [one for one in arguments if isinstance(one, str)]
    if literals:
        return literals[0]
    if origin is Union or (origin is not None and str(origin).endswith(("Required", "Annotated"))):
        return _value(arguments[0], name)
    return [_value(arguments[0], name)]


BLOCKS = _types(types.ContentBlockParam, beta_types.BetaContentBlockParam)
PARTS = _types(
    get_type_hints(types.ToolResultBlockParam)["content"],
    get_type_hints(beta_types.BetaToolResultBlockParam)["content"],
)
TOOLS = _types(types.ToolUnionParam, beta_types.BetaToolUnionParam)


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
    block = _example(BLOCKS[kind])
    messages = _messages(kind, block)
    response = scripted.client.post("/v1/messages", json={"max_tokens": 20, "messages": [*messages, USER]})
    assert response.status_code == 200, response.text
    named = f"{response.headers.get(CONVERTED_HEADER, '')} {response.headers.get(IGNORED_HEADER, '')}"
    place = f"messages[{len(messages) - 1}].content[0] ({kind}"
    assert (place in named) == (kind not in AS_THEY_ARE - {"image", "document"})


@pytest.mark.parametrize("kind", sorted(set(BLOCKS) - AS_THEY_ARE - UNREADABLE))
def test_the_text_of_a_converted_block_stays(kind: str) -> None:
    block = _example(BLOCKS[kind])
    body: Any = {"max_tokens": 5, "messages": [{"role": "assistant", "content": [block]}, USER]}
    before = str(block)
    convert(body)
    MessagesRequest.model_validate(body)
    after = body["messages"][0]["content"][0]
    assert MARK in str(after) or MARK not in before.replace(f"'tool_use_id': '{MARK}'", "")


@pytest.mark.parametrize("kind", sorted(PARTS))
def test_every_part_of_a_result_is_read_or_named(scripted: RunningServer, kind: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [_example(PARTS[kind])]}
    messages = [USER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [result]}]
    response = scripted.client.post("/v1/messages", json={"max_tokens": 20, "messages": messages})
    assert response.status_code == 200, response.text
    named = f"{response.headers.get(CONVERTED_HEADER, '')} {response.headers.get(IGNORED_HEADER, '')}"
    assert (f"messages[2].content[0].content[0] ({kind}" in named) == (kind != "text")


@pytest.mark.parametrize("kind", sorted(TOOLS))
def test_every_tool_is_a_function_or_left_out(scripted: RunningServer, kind: str) -> None:
    tool = _example(TOOLS[kind]) | {"type": kind}
    if kind == "custom":
        tool["input_schema"] = {"type": "object"}
    response = scripted.client.post("/v1/messages", json={"max_tokens": 20, "messages": [USER], "tools": [tool]})
    assert response.status_code == 200, response.text
    if kind == "mcp_toolset":  # of a server that is not there
        assert response.headers[IGNORED_HEADER] == "tools (mcp_toolset)"
        return
    is_left_out = SERVER_TOOLS.fullmatch(kind) is not None
    assert is_left_out != (kind in _literals(ToolType) or kind in get_args(ToolType))
    assert response.headers.get(IGNORED_HEADER, "") == (f"tools[0] ({kind})" if is_left_out else "")


@pytest.mark.parametrize("kind", sorted(set(TOOLS) & set(get_args(ToolType))))
def test_every_field_of_a_tool_is_accepted(scripted: RunningServer, kind: str) -> None:
    member = TOOLS[kind]
    tool = {name: _value(annotation, name) for name, annotation in _fields(member).items()} | {"type": kind}
    if kind == "custom":
        tool["input_schema"] = {"type": "object"}
    tool["strict"] = False
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
    kinds = _types(types.ThinkingConfigParam, beta_types.BetaThinkingConfigParam)
    assert set(kinds) == {"enabled", "disabled", "adaptive", "between_tools"}
    for kind, member in kinds.items():
        thinking = {name: _value(annotation, name) for name, annotation in _fields(member).items()}
        thinking |= {"type": kind} | ({"budget_tokens": 1024} if kind == "enabled" else {})
        response = scripted.client.post(
            "/v1/messages", json={"max_tokens": 20, "messages": [USER], "thinking": thinking}
        )
        assert response.status_code == 200, response.text
    displays = set(_literals(get_type_hints(beta_types.BetaThinkingConfigAdaptiveParam)["display"]))
    assert displays == {"summarized", "omitted", "updates"}
