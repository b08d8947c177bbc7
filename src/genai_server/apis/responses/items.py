"""Items of OpenAI's Responses API, as its responses contain them, and their conversion to chat messages
(https://platform.openai.com/docs/api-reference/responses/input-items).
"""

import base64
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from genai_server.apis.responses.item_schemas import (
    APPLY_PATCH,
    ApplyPatchCallItem,
    ApplyPatchCallOutputItem,
    CompactionItem,
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudioPart,
    InputImage,
    InputItem,
    InputText,
    Item,
    ItemReference,
    ItemWithStatus,
    MessageItem,
    OutputText,
    ReasoningItem,
    Status,
    full_name,
)
from genai_server.apis.shared.base import JsonObject
from genai_server.apis.shared.chat_messages import ChatMessage
from genai_server.errors import InvalidField
from genai_server.quoted_values import quoted

# The only argument of the function that represents a custom tool.
CUSTOM_INPUT = "input"
# Types of tool call items, and of their results.
CALLS = ("function_call", "custom_tool_call", "apply_patch_call")
OUTPUTS = tuple(f"{call}_output" for call in CALLS)
# Beginnings of the items' ids.
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "fco",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "compaction": "cmp",
}
# Precedes the summary of a compacted conversation.
_COMPACTED = "Summary of the conversation up to here:"


def new_id(prefix: str) -> str:
    """A random id that cannot be guessed."""
    return f"{prefix}_{secrets.token_hex(24)}"


def new_item(type: str, id: str | None = None, **fields: Any) -> JsonObject:
    """An item of this type, with a new id if none is given. Fields that are None are left out."""
    given = {name: value for name, value in fields.items() if value is not None}
    return {"id": id or new_id(_PREFIXES[type]), "type": type, **given}


def message(role: str, content: list[JsonObject], id: str | None = None, status: Status = "completed") -> JsonObject:
    """A message item; `input_text` and `output_text` build its content."""
    return new_item("message", id, status=status, role=role, content=content)


def input_text(text: str) -> JsonObject:
    """A content part of a message that is not the model's."""
    return {"type": "input_text", "text": text}


def output_text(text: str, logprobs: list[JsonObject] | None = None) -> JsonObject:
    """A content part of a message by the model."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def reasoning_text(text: str) -> JsonObject:
    """A content part of reasoning."""
    return {"type": "reasoning_text", "text": text}


def encrypted(text: str) -> str:
    """`encrypted_content` of reasoning, for clients that store nothing else of it.

    It is only encoded, not encrypted: the item contains the same content in plain text.
    """
    return base64.b64encode(text.encode()).decode()


def listed(item: JsonObject) -> JsonObject:
    """An item as listed by `input_items`, where custom tool calls have a status."""
    is_custom = item["type"] in ("custom_tool_call", "custom_tool_call_output")
    return {**item, "status": "completed"} if is_custom else item


def referenced_ids(given: str | Sequence[InputItem]) -> list[str]:
    """The ids of all item references in a request's input, with repetitions."""
    return [item.id for item in given if isinstance(item, ItemReference)]


def given_items(
    given: str | Sequence[InputItem], known: Mapping[str, JsonObject], *, field: str = "input"
) -> list[JsonObject]:
    """The items of a request's field. `known` maps ids to items that an item_reference may refer to.

    Raises InvalidField for an unknown reference, and for encrypted content that this server did not create.
    """
    if isinstance(given, str):
        return [message("user", [input_text(given)])]
    found = []
    for index, item in enumerate(given):
        if isinstance(item, ItemReference):
            if item.id not in known:
                raise InvalidField(f"no stored response has an item {quoted(item.id)}", param=f"{field}[{index}].id")
            found.append(known[item.id])
        else:
            found.append(_given_item(item, f"{field}[{index}]"))
    return found


def _given_item(item: Item, place: str) -> JsonObject:
    status = (item.status if isinstance(item, ItemWithStatus) else None) or "completed"
    match item:
        case MessageItem():
            part = output_text if item.role == "assistant" else input_text
            content = [part(item.content)] if isinstance(item.content, str) else _parts(item.content, part)
            return message(item.role, content, item.id, status)
        case FunctionCallItem():
            called = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            return new_item(item.type, item.id, status=status, **called, namespace=item.namespace)
        case ReasoningItem():
            content = [reasoning_text(text) for text in _thoughts(item, place)]
            return new_item(item.type, item.id, status=status, summary=[], content=content)
        case CustomToolCallItem():
            return new_item(item.type, item.id, call_id=item.call_id, name=item.name, input=item.input)
        case ApplyPatchCallItem():
            operation = item.operation.model_dump(exclude_none=True)
            return new_item(item.type, item.id, status="completed", call_id=item.call_id, operation=operation)
        case ApplyPatchCallOutputItem():
            return new_item(item.type, item.id, status=item.status, call_id=item.call_id, output=item.output)
        case CompactionItem():
            return new_item(item.type, item.id, encrypted_content=encrypted(_decrypted(item.encrypted_content, place)))
        case FunctionCallOutputItem() | CustomToolCallOutputItem():
            output = item.output if isinstance(item.output, str) else _parts(item.output, input_text)
            shown_status = status if isinstance(item, FunctionCallOutputItem) else None
            result = {"call_id": item.call_id, "output": output, "status": shown_status}
            return new_item(item.type, item.id, **result, name=item.name)
    raise AssertionError(item)


def _parts(
    given: Sequence[InputText | InputImage | InputAudioPart | OutputText], text_part: Callable[[str], JsonObject]
) -> list[JsonObject]:
    found = []
    for part in given:
        if isinstance(part, InputImage):
            found.append({"type": part.type, "detail": part.detail or "auto", "image_url": part.image_url})
        elif isinstance(part, InputAudioPart):
            found.append(part.model_dump())
        else:
            found.append(text_part(part.text))
    return found


def _thoughts(item: ReasoningItem, place: str) -> list[str]:
    if item.content is None and item.encrypted_content:
        return [_decrypted(item.encrypted_content, place)]
    return [one.text for one in item.content or item.summary]


def _decrypted(text: str, place: str = "input") -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        field = f"{place}.encrypted_content"
        raise InvalidField(f"{field} was not created by this server and cannot be decoded", param=field) from None


def to_messages(conversation: Sequence[JsonObject]) -> list[ChatMessage]:
    """The messages of a conversation. Reasoning, text and calls of one turn form one message.

    Raises InvalidField for the output of an unknown call.
    """
    messages: list[JsonObject] = []
    calls: set[str] = set()
    for item in conversation:
        if item["type"] in OUTPUTS:
            if item["call_id"] not in calls:
                raise InvalidField(
                    f"input has the output of call {quoted(item['call_id'])} but not the call itself", param="input"
                )
            result = {"role": "tool", "tool_call_id": item["call_id"], "content": _output(item)}
            messages.append({**result, "name": item.get("name")})
        elif item["type"] in CALLS:
            called = {"id": item["call_id"], "function": _called(item)}
            _turn(messages).setdefault("tool_calls", []).append(called)
            calls.add(item["call_id"])
        elif item["type"] == "compaction":
            messages.append({"role": "user", "content": f"{_COMPACTED}\n{_decrypted(item['encrypted_content'])}"})
        elif item["type"] == "reasoning":
            turn = _turn(messages, "content", "tool_calls")
            turn["reasoning_content"] = turn.get("reasoning_content", "") + _text(item["content"])
        elif item["role"] == "assistant":
            _turn(messages, "content")["content"] = _content(item["content"])
        else:
            messages.append({"role": item["role"], "content": _content(item["content"])})
    return [ChatMessage.model_validate(one if "tool_calls" in one else {"content": "", **one}) for one in messages]


def _turn(messages: list[JsonObject], *ended_by: str) -> JsonObject:
    """The assistant's open message, or a new one if the last message is complete or has another role."""
    if not messages or messages[-1]["role"] != "assistant" or any(field in messages[-1] for field in ended_by):
        messages.append({"role": "assistant"})
    return messages[-1]


def _called(item: JsonObject) -> JsonObject:
    """The function that represents a call's tool, with its arguments."""
    match item["type"]:
        case "custom_tool_call":
            return _function(item["name"], {CUSTOM_INPUT: item["input"]})
        case "apply_patch_call":
            return _function(APPLY_PATCH, {"diff": "", **item["operation"]})
    return {"name": full_name(item["name"], item.get("namespace")), "arguments": item["arguments"]}


def _function(name: str, arguments: JsonObject) -> JsonObject:
    return {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}


def _output(item: JsonObject) -> str | list[JsonObject]:
    if item["type"] != "apply_patch_call_output":
        return _content(item["output"])
    about: str = item.get("output") or item["status"]
    return about if item["status"] == "completed" else f"Error: {about}"


def is_medium(part: Any) -> bool:
    """Whether a content part is an image or a sound."""
    return isinstance(part, dict) and part["type"] in ("input_image", "input_audio")


def data_of(part: JsonObject) -> tuple[str, str]:
    """The field of an image or a sound that has its URL or data, and that."""
    if part["type"] == "input_image":
        return "image_url", part["image_url"]
    return "input_audio.data", part["input_audio"]["data"]


def parts_of(item: JsonObject) -> tuple[str, list[JsonObject]]:
    """The field of an item that may have content parts, and its parts; none if its value is a text."""
    field = "content" if item["type"] == "message" else "output"
    parts = item.get(field)
    return field, parts if isinstance(parts, list) else []


def _content(content: str | list[JsonObject]) -> str | list[JsonObject]:
    """The text; with images or sounds, a chat's content parts, in which the texts between two of these are joined."""
    if isinstance(content, str) or not any(map(is_medium, content)):
        return _text(content)
    found: list[JsonObject] = []
    for are_media, run in groupby(content, key=is_medium):
        if not are_media:
            found.append({"type": "text", "text": _text(list(run))})
            continue
        for part in run:
            if part["type"] == "input_audio":
                found.append(part)
            else:
                image = {"url": part["image_url"], "detail": part["detail"]}
                found.append({"type": "image_url", "image_url": image})
    return found


def _text(content: str | list[JsonObject]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
