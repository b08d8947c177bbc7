"""Converts parts of conversation histories that this server does not support, for all chat APIs.

Programs send back messages that they received from this server, another server or an SDK. A program that changes its
provider sends the first provider's web searches, executed code, calls of tool servers and so on. This server has no
such tools, and chat templates have no form for them. So the model reads a note, which has the type of the item and then
its fields, one in each line. What cannot be read as text is left out; both are reported. The user's last message is not
changed, since validation refuses what it may not contain.

`note` and `part_text` write the notes, `convert_parts` and `convert_messages` apply them to a body. `introduction`
writes the definitions of functions that a tool search has found or that a message has added: they stand where that
happens and not at the beginning of the prompt, so that the prompt up to that point, and its cached prefix, stays valid.
`media_names` finds the fields of another API's body from which images and audio came, for error messages.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from genai_server.generation.parameters.chat_messages import ChatMessage
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import RemovalRules, history_of, nameable, objects_at, replace_media

# Where a body has an image or audio: the part, such as `input[0].content[1]`, and its field with the data or URL.
MediaLocation = tuple[str, str]


def media_names(messages: Sequence[ChatMessage], locations: Iterable[MediaLocation]) -> dict[str, str]:
    """Map the path of each image and audio part in a chat's messages to the path in the body from which the chat was
    made, so that error messages name the client's own fields.

    `locations` are the locations of the images and audio in that body, in the order in which the messages contain them.
    """
    parts = [
        (f"messages[{number}].content[{index}]", "image_url.url" if part.type == "image_url" else "input_audio.data")
        for number, message in enumerate(messages)
        for index, part in message.media
    ]
    names: dict[str, str] = {}
    for (part, field), (outer_part, outer_field) in zip(parts, locations, strict=True):
        names |= {part: outer_part, f"{part}.{field}": outer_field}
    return names


# Fields that mean something only to the server that wrote them.
_SERVER_SPECIFIC_FIELDS = frozenset(
    {
        "async",
        "cache_control",
        "call_id",
        "caller",
        "container_id",
        "created_by",
        "encrypted_content",
        "encrypted_index",
        "encrypted_stdout",
        "fingerprint",
        "id",
        "item_id",
        "signature",
        "status",
        "tool_use_id",
        "type",
    }
)
# Fields next to a text that are not part of a prompt.
_TEXT_METADATA_FIELDS = frozenset({"annotations", "logprobs", "prompt_cache_breakpoint"})
# Files inside of a text: data URLs, and base64 that is too long for a word. The second form begins only where a run of
# its characters does, so that the search takes linear time.
_FILE = re.compile(r"data:[\w.+-]*/[\w.+-]+;base64,[\w+/=-]*|(?<![\w+/-])[\w+/-]{512,}={0,2}", re.ASCII)
_NO_FILE = "(file left out)"
# What a result's type ends with. All other types are calls, made in the assistant's turn.
_RESULT_ENDINGS = ("_output", "_response", "_result")
_ROLES = ("assistant", "developer", "system", "user")


def note(value: JsonObject) -> str:
    """Write a text in which the model can read a call or a result of another provider's tool, given as its JSON object.

    The text contains all texts and numbers of the object, except ids, states, encrypted content and files. Of tools
    that the object lists, it has only the names, since the model cannot call them.
    """
    lines = [f"[{value['type']}]"]
    for name, field in value.items():
        field = _names(field) if name == "tools" else _meaning(field)
        if name not in _SERVER_SPECIFIC_FIELDS and field not in (None, "", [], {}):
            lines.append(f"{name}: {_text(field)}")
    return "\n".join(lines)


def part_text(part: JsonObject) -> str:
    """Return the text for a content part of an unknown type: the part's own text if the part has nothing else,
    otherwise a note, which lists the part's type and fields.
    """
    texts = [part[name] for name in ("text", "refusal") if isinstance(part.get(name), str)]
    is_text = len(texts) == 1 and len(part.keys() - _SERVER_SPECIFIC_FIELDS - _TEXT_METADATA_FIELDS) == 1
    return str(texts[0]) if is_text else note(part)


def note_role(value: JsonObject) -> str:
    """Return the role of the message that contains the note about a tool call or result: the role that the object
    `value` has, otherwise `user` for a tool result and `assistant` for everything else.
    """
    if (role := value.get("role")) in _ROLES:
        return str(role)
    return "user" if str(value["type"]).endswith(_RESULT_ENDINGS) else "assistant"


def _names(tools: Any) -> Any:
    """Return the names of the tools in a list, separated by commas. A tool without a name is
    represented by its type.
    """
    if not isinstance(tools, list):
        return _meaning(tools)
    named = [tool.get("name") or tool.get("type") for tool in tools if isinstance(tool, dict)]
    return ", ".join(name for name in named if isinstance(name, str))


def _meaning(value: Any) -> Any:
    """Return a JSON value without the parts that mean nothing to a model, at all levels of nesting: files, and fields
    such as ids that only the server that created them can use. The argument is not changed.
    """
    if isinstance(value, dict):
        inner = {
            name: _meaning(field)
            for name, field in value.items()
            if name == "type" or name not in _SERVER_SPECIFIC_FIELDS
        }
        return {name: field for name, field in inner.items() if field is not None}
    if isinstance(value, list):
        return [_meaning(element) for element in value]
    return _FILE.sub(_NO_FILE, value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    """Return the text with which a JSON value appears in a note: a string unchanged, a list of text parts as one line
    for each part, and everything else as JSON.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(_is_text(part) for part in value):
        return "\n".join(part["text"] for part in value)
    return json.dumps(value, ensure_ascii=False)


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.keys() == {"type", "text"} and isinstance(part["text"], str)


def introduction(functions: Iterable[JsonObject]) -> str:
    """Write a text that tells the model the definitions of functions that it may call from now on. A function that has
    only a name is listed by its name.
    """
    lines = (f"<function>{_definition(function)}</function>" for function in functions)
    return "\n".join(["<functions>", *lines, "</functions>"])


def _definition(function: JsonObject) -> str:
    fields = {name: function[name] for name in ("description", "name", "parameters") if name in function}
    return json.dumps(fields, ensure_ascii=False)


# Parts that are files.
FILES = {"file": "file"}
_PARTS = ("text", "image_url", "input_audio", *FILES)


def convert_messages(body: Any) -> list[str]:
    """In the field `messages` of a chat request's body, convert parts of the conversation history that this server does
    not support to text. Changes `body`. Returns a description of each change: the location of the part and its new
    form.
    """
    changes = convert_parts(history_of(body, "messages"), "messages[].content[]", _PARTS, "text")
    for location, message in objects_at(body, "messages[]"):
        if message.get("role") != "assistant":
            continue
        refusal, audio = message.get("refusal"), message.get("audio")
        if isinstance(refusal, str):
            del message["refusal"]
            changes += [f"{location}.refusal (as content)"] if _add_text(message, refusal) else []
        if isinstance(audio, dict) and isinstance(audio.get("transcript"), str):
            del message["audio"]
            changes += (
                [f"{location}.audio (its transcript as content)"] if _add_text(message, audio["transcript"]) else []
            )
    return changes


def _leave_out_of_answers(body: Any) -> Iterator[str]:
    for location, message in objects_at(body, "messages[]"):
        for field in ("annotations", "audio"):
            if message.get(field) and message.get("role") == "assistant":
                del message[field]
                yield f"{location}.{field}"


# What of the history in a body's `messages` cannot be read as text.
HISTORY = RemovalRules(
    rules=(
        lambda body: replace_media(history_of(body, "messages"), FILES, "text", "messages[].content[]"),
        _leave_out_of_answers,
    ),
    forms={"messages[]": ChatMessage},
)


def convert_parts(history: JsonObject, path: str, known_types: Collection[str], text_type: str) -> list[str]:
    """In a conversation history, replace content parts of unknown types by their text. Changes `history`. Returns the
    location and former type of each replaced part.

    `path` says where the content parts are, such as `messages[].content[]`. Parts with a type in `known_types` stay
    unchanged. The new parts have the type `text_type`.
    """
    changes = []
    for location, part in objects_at(history, path):
        kind = part.get("type")
        if isinstance(kind, str) and kind not in known_types:
            text = part_text(part)
            part.clear()
            part.update(type=text_type, text=text)
            changes.append(f"{location} ({nameable(kind, 'a part')} as text)")
    return changes


def _add_text(message: JsonObject, text: str) -> bool:
    """Append a text to the content of a message, which is changed. Returns False, and changes nothing, if the text is
    empty; otherwise True.
    """
    content = message.get("content")
    if text and isinstance(content, list):
        content.append({"type": "text", "text": text})
    elif text and isinstance(content, str | None):
        message["content"] = f"{content}\n{text}" if content else text
    return bool(text)
