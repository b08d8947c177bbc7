"""Items of OpenAI's Responses API as JSON objects, in the form that responses contain and the store keeps: functions
that create them, convert a request's validated items to this form, classify them, and convert a conversation of such
items to chat messages for the prompt (https://platform.openai.com/docs/api-reference/responses/input-items).
"""

import base64
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from genai_server.apis.responses.item_schemas import (
    AdditionalToolsItem,
    CompactionItem,
    CustomToolCallItem,
    CustomToolCallOutputItem,
    ForeignItem,
    FunctionCallOutputItem,
    InputAudioPart,
    InputImage,
    InputItem,
    InputText,
    Item,
    ItemReference,
    MessageItem,
    OutputText,
    ReasoningItem,
    Status,
)
from genai_server.apis.responses.tools import CLIENT_TOOLS, Introduce, full_name
from genai_server.apis.shared import chat_history
from genai_server.errors import InvalidField, quoted
from genai_server.generation.parameters import chat_messages
from genai_server.generation.parameters.chat_messages import ChatMessage
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import nameable

# Types of tool call items, and of their results.
_CALLS = frozenset({"function_call", "custom_tool_call", *(tool.call for tool in CLIENT_TOOLS.values())})
_OUTPUTS = frozenset(
    {"function_call_output", "custom_tool_call_output", *(tool.output for tool in CLIENT_TOOLS.values())}
)
# Items that say nothing to the model: they change what the API does with later requests.
_SETTINGS = ("compaction_trigger", "configuration_update")
_CONTENT_FIELDS = {"message": "content", "function_call_output": "output", "custom_tool_call_output": "output"}
# Prefixes of the ids of items.
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "fco",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "at",
    "compaction": "cmp",
}
# Prefixes of the ids of items about tool calls that this server runs.
_SERVED_PREFIXES = {"mcp_call": "mcp", "mcp_list_tools": "mcpl", "mcp_approval_request": "mcpr"}
_OTHER_PREFIX = "item"
# Precedes the summary of a compacted conversation.
_COMPACTED = "Summary of the conversation up to here:"
# Precedes the output of a call that the conversation does not have.
_ORPHAN_NOTE = "[output of an earlier tool call]"


def new_id(prefix: str) -> str:
    """Return a new id: `prefix`, an underscore and 48 random hexadecimal digits, which cannot be guessed."""
    return f"{prefix}_{secrets.token_hex(24)}"


def new_item(type: str, id: str | None = None, **fields: Any) -> JsonObject:
    """Return a new item of the type `type` as a JSON object. It has `fields`, except those whose value is None. `id` is
    the item's id; if it is None, the item gets a new id with the prefix of its type.
    """
    values = {name: value for name, value in fields.items() if value is not None}
    prefix = _PREFIXES.get(type) or _SERVED_PREFIXES.get(type, _OTHER_PREFIX)
    return {"id": id or new_id(prefix), "type": type, **values}


def message(role: str, content: list[JsonObject], id: str | None = None, status: Status = "completed") -> JsonObject:
    """Return a message item. `content` has its content parts, made by `input_text` and `output_text`. If `id` is None,
    the item gets a new id.
    """
    return new_item("message", id, status=status, role=role, content=content)


def input_text(text: str) -> JsonObject:
    """Return a content part with a text that the model did not write, for messages of other roles and tool outputs."""
    return {"type": "input_text", "text": text}


def output_text(text: str, logprobs: list[JsonObject] | None = None) -> JsonObject:
    """Return a content part with a text that the model has written, for its messages. `logprobs` are the log
    probabilities of the text's tokens in OpenAI's format; None if the request does not ask for them.
    """
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def reasoning_text(text: str) -> JsonObject:
    """Return a content part with a text of the model's reasoning, for the `content` of a reasoning item."""
    return {"type": "reasoning_text", "text": text}


def encrypted(text: str) -> str:
    """Return `text`, the text of a reasoning item or the summary in a compaction item, in the form of the field
    `encrypted_content`. Clients may keep only this field of an item and send it back.

    The text is only encoded (as base64), not encrypted, because it is no secret: a reasoning item contains it in plain
    text as well.
    """
    return base64.b64encode(text.encode()).decode()


def listed(item: JsonObject) -> JsonObject:
    """Return an item as the endpoint for a response's input items shows it: calls of custom tools and the outputs of
    such calls get the status "completed", other items are returned unchanged. `item` itself is not changed.
    """
    is_custom = item["type"] in ("custom_tool_call", "custom_tool_call_output")
    return {**item, "status": "completed"} if is_custom else item


def referenced_ids(items: str | Sequence[InputItem]) -> list[str]:
    """Return the ids to which the `item_reference` items of a request refer, in order and with repetitions. `items` is
    the request's input; a text has no references.
    """
    return [item.id for item in items if isinstance(item, ItemReference)]


def to_response_items(
    items: str | Sequence[InputItem], stored: Mapping[str, JsonObject], *, field: str = "input"
) -> list[JsonObject]:
    """Convert the validated items of a request to the form that items have in responses. A text becomes one message of
    the user. `stored` maps ids to stored items, which take the place of the references to them.

    `field` is the name of the request's field that has `items`, for error messages. Raises InvalidField for a reference
    to an item that is not in `stored`, and for encrypted content that this server has not created.
    """
    if isinstance(items, str):
        return [message("user", [input_text(items)])]
    converted = []
    for index, item in enumerate(items):
        if isinstance(item, ItemReference):
            if item.id not in stored:
                raise InvalidField(
                    f"{field}[{index}].id", f"{quoted(item.id)} is the id of no item of a stored response"
                )
            converted.append(stored[item.id])
        else:
            converted.append(_to_response_item(item, f"{field}[{index}]"))
    return converted


def _to_response_item(item: Item | ForeignItem, location: str) -> JsonObject:
    status: Any = getattr(item, "status", None) or "completed"
    match item:
        case ForeignItem():
            return {"id": item.id or new_id(_OTHER_PREFIX), **item.fields}
        case MessageItem():
            part = output_text if item.role == "assistant" else input_text
            content = [part(item.content or "")] if isinstance(item.content, str | None) else _parts(item.content, part)
            return message(item.role, content, item.id, status)
        case ReasoningItem():
            content = [reasoning_text(text) for text in _thoughts(item, location)]
            return new_item(item.type, item.id, status=status, summary=[], content=content)
        case CompactionItem():
            return new_item(
                item.type, item.id, encrypted_content=encrypted(_decrypted(item.encrypted_content, location))
            )
        case FunctionCallOutputItem() | CustomToolCallOutputItem():
            output = item.output if isinstance(item.output, str) else _parts(item.output, input_text)
            shown_status = status if isinstance(item, FunctionCallOutputItem) else None
            result = {"call_id": item.call_id, "output": output, "status": shown_status}
            return new_item(item.type, item.id, **result, name=item.name)
        case CustomToolCallItem():
            return new_item(item.type, item.id, **_fields(item))
        case AdditionalToolsItem():
            return new_item(item.type, item.id, role="developer", **_fields(item))
    return new_item(item.type, item.id, status=status, **_fields(item))


def _fields(item: Item) -> JsonObject:
    """Return the fields of a validated item that are specific to its type: without `id`, `type`, `status`, fields that
    have no effect here, and fields whose value is None.
    """
    without = {"id", "type", "status", "async_", "caller", "created_by", "environment", "role"}
    fields: JsonObject = item.model_dump(exclude=without, exclude_none=True)
    return fields


def _parts(
    parts: Sequence[InputText | InputImage | InputAudioPart | OutputText], text_part: Callable[[str], JsonObject]
) -> list[JsonObject]:
    converted = []
    for part in parts:
        if isinstance(part, InputImage):
            converted.append({"type": part.type, "detail": part.detail or "auto", "image_url": part.image_url})
        elif isinstance(part, InputAudioPart):
            converted.append(part.model_dump())
        else:
            converted.append(text_part(part.text))
    return converted


def _thoughts(item: ReasoningItem, location: str) -> list[str]:
    if item.content is None and item.encrypted_content:
        return [_decrypted(item.encrypted_content, location)]
    return [part.text for part in item.content or item.summary or []]


def is_readable(encrypted_content: str) -> bool:
    """Return whether the value of a field `encrypted_content` can be decoded. If not, another server has created it."""
    try:
        _decrypted(encrypted_content)
    except InvalidField:
        return False
    return True


def _decrypted(text: str, location: str = "input") -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        field = f"{location}.encrypted_content"
        raise InvalidField(field, "was not created by this server and cannot be decoded") from None


def is_call(item: JsonObject) -> bool:
    """Return whether an item is a call of a tool that the client runs, such as a function call or a shell call."""
    return item["type"] in _CALLS and not is_foreign(item)


def is_output(item: JsonObject) -> bool:
    """Return whether an item is the output of a tool that the client has run, such as that of a function call."""
    return item["type"] in _OUTPUTS and not is_foreign(item)


def is_foreign(item: JsonObject) -> bool:
    """Return whether this server does not support an item's type, so that the model reads a note with the item's fields
    instead. A tool search without `call_id`, which another provider has run, is such an item, too.
    """
    kind = item["type"]
    return kind not in _PREFIXES or (kind.startswith("tool_search_") and item.get("call_id") is None)


def to_messages(conversation: Sequence[JsonObject], introduce: Introduce = lambda item: "") -> list[ChatMessage]:
    """Convert a conversation to chat messages, from which the prompt is made. Reasoning, text and tool calls of one
    turn of the assistant become one message.

    `introduce` returns the text that defines the tools which an item adds to the conversation; "" leaves the item out.
    An item of a type that this server does not support becomes a text, and so does the output of a tool call that the
    conversation does not contain. Raises InvalidField if such an output comes after the user's last message.
    """
    messages: list[JsonObject] = []
    for item, is_orphan in _with_orphans(conversation):
        kind = item["type"]
        if is_foreign(item) and kind not in _SETTINGS:
            _add_note(messages, item)
        elif is_orphan:
            _new(messages, "user")["content"] = _joined(_ORPHAN_NOTE, _output(item, introduce))
        elif is_output(item):
            result = {"role": "tool", "tool_call_id": item["call_id"], "content": _output(item, introduce)}
            messages.append({**result, "name": item.get("name")})
        elif is_call(item):
            called = {"id": item["call_id"], "function": _called(item)}
            _turn(messages).setdefault("tool_calls", []).append(called)
        elif kind == "additional_tools" and (text := introduce(item)):
            _new(messages, "developer")["content"] = text
        elif kind == "compaction":
            _new(messages, "user")["content"] = f"{_COMPACTED}\n{_decrypted(item['encrypted_content'])}"
        elif kind == "reasoning" and (thought := _text(item["content"])):
            turn = _turn(messages, "content", "tool_calls")
            turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
        elif kind == "message":
            message = _turn(messages, "content") if item["role"] == "assistant" else _new(messages, item["role"])
            message["content"] = _content(item["content"])
    return [
        ChatMessage.model_validate(fields if "tool_calls" in fields else {"content": "", **fields})
        for fields in messages
    ]


def conversions(conversation: Sequence[JsonObject]) -> Iterator[tuple[JsonObject, str]]:
    """Yield the items that `to_messages`, which converts a conversation to chat messages, turns into text although
    OpenAI's API would not. Each comes with a description of the conversion, such as "web_search_call as text", for the
    report to the client.

    Raises InvalidField if the output of an unknown tool call comes after the user's last message.
    """
    for item, is_orphan in _with_orphans(conversation):
        if is_foreign(item) and item["type"] not in _SETTINGS:
            yield item, f"{nameable(item['type'], 'an item')} as text"
        elif is_orphan:
            yield item, "output of an unknown call, as text"


def without_effect(conversation: Sequence[JsonObject]) -> Iterator[tuple[JsonObject, str]]:
    """Yield the items of a conversation that have no effect on the prompt, because they only set options of OpenAI's
    API (`compaction_trigger` and `configuration_update`). Each comes with its type.
    """
    return ((item, item["type"]) for item in conversation if item["type"] in _SETTINGS)


def _with_orphans(conversation: Sequence[JsonObject]) -> Iterator[tuple[JsonObject, bool]]:
    """Yield each item of a conversation, and whether it is the output of a tool call that does not come before it. The
    call is missing if the client has cut off the beginning of the conversation.

    Raises InvalidField if such an output comes after the user's last message, because the model is then to answer the
    output itself.
    """
    last_user = max((n for n, item in enumerate(conversation) if item.get("role") == "user"), default=-1)
    calls: set[str] = set()
    for number, item in enumerate(conversation):
        if is_call(item):
            calls.add(item["call_id"])
        is_orphan = is_output(item) and item.get("call_id") not in calls
        if is_orphan and number > last_user:
            id = quoted(item.get("call_id"))
            raise InvalidField("input", f"has the output of call {id} but not the call itself")
        yield item, is_orphan


def _turn(messages: list[JsonObject], *ended_by: str) -> JsonObject:
    """Return the assistant's message to which the next item is added. This is the last of `messages`, unless it has
    another role or already has one of the fields `ended_by`; then a new message is appended to `messages` and returned.
    """
    if not messages or messages[-1]["role"] != "assistant" or any(field in messages[-1] for field in ended_by):
        return _new(messages, "assistant")
    return messages[-1]


def _new(messages: list[JsonObject], role: str) -> JsonObject:
    """Append a new message that has only the role `role` to `messages`, and return it, so that the caller adds its
    content.
    """
    messages.append({"role": role})
    return messages[-1]


def _add_note(messages: list[JsonObject], item: JsonObject) -> None:
    """Add a note, the text that describes an item of an unsupported type, to `messages`. The note for an item of the
    assistant is added to the assistant's current message, so that tool calls are directly followed by their outputs.
    Other notes become messages of their own.
    """
    text, role = chat_history.note(item), chat_history.note_role(item)
    if role != "assistant":
        _new(messages, role)["content"] = text
        return
    turn = _turn(messages)
    turn["content"] = _joined(turn["content"], text) if turn.get("content") else text


def _joined(first: str | list[JsonObject], second: str | list[JsonObject]) -> str | list[JsonObject]:
    """Return the content of a chat message that consists of the contents `first` and `second`.

    Two texts are joined by a line break. If one of the two is a list of content parts, the result is a list, too.
    """
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n{second}"
    return [*_as_parts(first), *_as_parts(second)]


def _as_parts(content: str | list[JsonObject]) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _called(item: JsonObject) -> JsonObject:
    """Return the function call by which the prompt represents a tool call of any type: an object with the function's
    `name` and its `arguments`, a JSON text.
    """
    if item["type"] == "function_call":
        return {"name": full_name(item["name"], item.get("namespace")), "arguments": item["arguments"]}
    if item["type"] == "custom_tool_call":
        name = full_name(item["name"], item.get("namespace"))
        return {"name": name, "arguments": chat_messages.arguments_of(item["input"])}
    tool = CLIENT_TOOLS[item["type"]]
    return {"name": tool.name, "arguments": json.dumps(tool.arguments(item), ensure_ascii=False)}


def _output(item: JsonObject, introduce: Introduce) -> str | list[JsonObject]:
    tool = CLIENT_TOOLS.get(item["type"])
    return _content(item["output"]) if tool is None else tool.result(item, introduce)


def is_medium(part: Any) -> bool:
    """Return whether a content part of an item is an image or audio."""
    return isinstance(part, dict) and part["type"] in ("input_image", "input_audio")


def data_of(part: JsonObject) -> tuple[str, str]:
    """Return where an image or audio part has its data: the path of the field, such as `image_url`, and the field's
    value, which is a URL or base64.
    """
    if part["type"] == "input_image":
        return "image_url", part["image_url"]
    return "input_audio.data", part["input_audio"]["data"]


def parts_of(item: JsonObject) -> tuple[str, list[JsonObject]]:
    """Return the name of the field in which items of this item's type have content parts ("" if they have none), and
    the parts of this item. The list is empty if the field is a text.
    """
    field = _CONTENT_FIELDS.get(item["type"], "")
    parts = item.get(field)
    return field, parts if isinstance(parts, list) else []


def _content(content: str | list[JsonObject]) -> str | list[JsonObject]:
    """Convert the content of an item to the content of a chat message. Without images and audio, the result is one
    text. With them, it is a list of parts in OpenAI's chat format, in which adjacent texts are joined to one part.
    """
    if isinstance(content, str) or not any(map(is_medium, content)):
        return _text(content)
    parts: list[JsonObject] = []
    for are_media, run in groupby(content, key=is_medium):
        if not are_media:
            parts.append({"type": "text", "text": _text(list(run))})
            continue
        for part in run:
            if part["type"] == "input_audio":
                parts.append(part)
            else:
                image = {"url": part["image_url"], "detail": part["detail"]}
                parts.append({"type": "image_url", "image_url": image})
    return parts


def _text(content: str | list[JsonObject]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
