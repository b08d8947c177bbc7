"""Items of OpenAI's Responses API in the form that responses contain, and their conversion to chat messages
(https://platform.openai.com/docs/api-reference/responses/input-items).
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
    """A new random id with this prefix, which cannot be guessed."""
    return f"{prefix}_{secrets.token_hex(24)}"


def new_item(type: str, id: str | None = None, **fields: Any) -> JsonObject:
    """Create an item of this type with these fields. Fields with the value None are omitted. The item gets a new id if
    none is given.
    """
    values = {name: value for name, value in fields.items() if value is not None}
    prefix = _PREFIXES.get(type) or _SERVED_PREFIXES.get(type, _OTHER_PREFIX)
    return {"id": id or new_id(prefix), "type": type, **values}


def message(role: str, content: list[JsonObject], id: str | None = None, status: Status = "completed") -> JsonObject:
    """A message item. `content` consists of parts made by `input_text` and `output_text`. It gets a new id if none is
    given.
    """
    return new_item("message", id, status=status, role=role, content=content)


def input_text(text: str) -> JsonObject:
    """A content part for a text that is not the model's."""
    return {"type": "input_text", "text": text}


def output_text(text: str, logprobs: list[JsonObject] | None = None) -> JsonObject:
    """A content part for a text of the model, with the log probabilities of its tokens if they are given."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def reasoning_text(text: str) -> JsonObject:
    """A content part for reasoning of the model."""
    return {"type": "reasoning_text", "text": text}


def encrypted(text: str) -> str:
    """The value of `encrypted_content` for a text, for clients that keep nothing else of a reasoning item.

    The text is only encoded, not encrypted, since the item contains it in plain text as well.
    """
    return base64.b64encode(text.encode()).decode()


def listed(item: JsonObject) -> JsonObject:
    """The item in the form in which lists of items show it, where calls of custom tools and the outputs of such calls
    have a status.
    """
    is_custom = item["type"] in ("custom_tool_call", "custom_tool_call_output")
    return {**item, "status": "completed"} if is_custom else item


def referenced_ids(items: str | Sequence[InputItem]) -> list[str]:
    """The ids of all items to which an input refers by item_reference, with repetitions."""
    return [item.id for item in items if isinstance(item, ItemReference)]


def to_response_items(
    items: str | Sequence[InputItem], stored: Mapping[str, JsonObject], *, field: str = "input"
) -> list[JsonObject]:
    """Convert the items of a request to the form that items have in responses. `stored` has stored items by id, which
    replace references to items.

    `field` is the request's field with the items. Raises InvalidField for a reference to an item that is not in
    `stored`, and for encrypted content that this server has not created.
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
    """The fields of an item that only its type has, without id, status and other fields that many types have."""
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
    """Whether encrypted content can be decoded, so that this server may have created it."""
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
    """Whether an item is a call of a tool that the client runs."""
    return item["type"] in _CALLS and not is_foreign(item)


def is_output(item: JsonObject) -> bool:
    """Whether an item is the output of a tool that the client has run."""
    return item["type"] in _OUTPUTS and not is_foreign(item)


def is_foreign(item: JsonObject) -> bool:
    """Whether an item has a type that this server does not support. The model reads a description of such an item as
    text.
    """
    kind = item["type"]
    return kind not in _PREFIXES or (kind.startswith("tool_search_") and item.get("call_id") is None)


def to_messages(conversation: Sequence[JsonObject], introduce: Introduce = lambda item: "") -> list[ChatMessage]:
    """The chat messages for a conversation. Reasoning, text and calls of one turn form one message.

    `introduce` writes the text for an item that adds tools. Items of other providers become text, and so do outputs of
    earlier calls that are not in the conversation. Raises InvalidField for the output of an unknown call after which
    there is no message of the user.
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
    """The items that `to_messages` converts to text although OpenAI's API would not, each with a description of the
    conversion such as "web_search_call as text".
    """
    for item, is_orphan in _with_orphans(conversation):
        if is_foreign(item) and item["type"] not in _SETTINGS:
            yield item, f"{nameable(item['type'], 'an item')} as text"
        elif is_orphan:
            yield item, "output of an unknown call, as text"


def without_effect(conversation: Sequence[JsonObject]) -> Iterator[tuple[JsonObject, str]]:
    """The items of a conversation that `to_messages` leaves out, each with its type."""
    return ((item, item["type"]) for item in conversation if item["type"] in _SETTINGS)


def _with_orphans(conversation: Sequence[JsonObject]) -> Iterator[tuple[JsonObject, bool]]:
    """Each item of a conversation, and whether it is the output of a tool call that does not come before it. The call
    is missing if the client has cut off the beginning of the conversation.

    Raises InvalidField if no message of the user follows such an output, since the model is then to answer the output
    itself.
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
    """The assistant's message to which the next item is added: the last of `messages` or, if that has another role or
    already has one of the fields `ended_by`, a new message.
    """
    if not messages or messages[-1]["role"] != "assistant" or any(field in messages[-1] for field in ended_by):
        return _new(messages, "assistant")
    return messages[-1]


def _new(messages: list[JsonObject], role: str) -> JsonObject:
    """Append a new message with this role, and return it."""
    messages.append({"role": role})
    return messages[-1]


def _add_note(messages: list[JsonObject], item: JsonObject) -> None:
    """Add the text for another provider's item to the messages. An item of the assistant stays in the assistant's
    message, so that calls are directly followed by their outputs.
    """
    text, role = chat_history.note(item), chat_history.note_role(item)
    if role != "assistant":
        _new(messages, role)["content"] = text
        return
    turn = _turn(messages)
    turn["content"] = _joined(turn["content"], text) if turn.get("content") else text


def _joined(first: str | list[JsonObject], second: str | list[JsonObject]) -> str | list[JsonObject]:
    """The content of one message that has the contents of two messages.

    Two texts are joined by a line break. If one of the two is a list of content parts, the result is a list, too.
    """
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n{second}"
    return [*_as_parts(first), *_as_parts(second)]


def _as_parts(content: str | list[JsonObject]) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _called(item: JsonObject) -> JsonObject:
    """The name and arguments of the function call that stands for a call item."""
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
    """Whether a content part is an image or audio."""
    return isinstance(part, dict) and part["type"] in ("input_image", "input_audio")


def data_of(part: JsonObject) -> tuple[str, str]:
    """The field of an image or audio part that contains its URL or data, and the value of the field."""
    if part["type"] == "input_image":
        return "image_url", part["image_url"]
    return "input_audio.data", part["input_audio"]["data"]


def parts_of(item: JsonObject) -> tuple[str, list[JsonObject]]:
    """The name of the field in which an item has content parts, and the parts. There are none if the field is a
    text.
    """
    field = _CONTENT_FIELDS.get(item["type"], "")
    parts = item.get(field)
    return field, parts if isinstance(parts, list) else []


def _content(content: str | list[JsonObject]) -> str | list[JsonObject]:
    """The content of a chat message: the text; with images or audio, a list of parts in which adjacent texts are
    joined.
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
