"""Texts about tools in a conversation: notes on calls and results of other providers' tools, and definitions of
functions that the conversation introduces.

A program that changes its provider sends the whole conversation to the new one, with the first provider's web searches,
executed code, calls of tool servers and so on. This server has no such tools, and chat templates have no form for them.
So the model reads a note: the type of the item, and then its fields, one in each line.

Functions that a tool search has found, or that a message has added, are defined where that happens and not at the
beginning of the prompt. So when an agent finds more tools, the prompt is unchanged up to that point and its cached
prefix stays valid.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from genai_server.http.json_response import JsonObject

# Fields that mean something only to the server that wrote them.
_WITHOUT_MEANING = frozenset(
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
_ABOUT_TEXTS = frozenset({"annotations", "logprobs", "prompt_cache_breakpoint"})
# Files inside of a text: data URLs, and base64 that is too long for a word. The second form begins only where a run of
# its characters does, so that the search takes linear time.
_FILE = re.compile(r"data:[\w.+-]*/[\w.+-]+;base64,[\w+/=-]*|(?<![\w+/-])[\w+/-]{512,}={0,2}", re.ASCII)
_NO_FILE = "(file left out)"
# What a result's type ends with. All other types are calls, made in the assistant's turn.
_RESULT_ENDINGS = ("_output", "_response", "_result")
_ROLES = ("assistant", "developer", "system", "user")


def note(value: JsonObject) -> str:
    """A text that describes a call or a result of another provider's tool.

    It contains all texts and numbers of the object, except ids, states, encrypted content and files. Of tools that the
    object lists it has only the names, since the model cannot call them.
    """
    lines = [f"[{value['type']}]"]
    for name, field in value.items():
        field = _names(field) if name == "tools" else _meaning(field)
        if name not in _WITHOUT_MEANING and field not in (None, "", [], {}):
            lines.append(f"{name}: {_text(field)}")
    return "\n".join(lines)


def part_text(part: JsonObject) -> str:
    """The text of a content part of an unknown type: the part's own text if it has nothing else, otherwise a note."""
    texts = [part[name] for name in ("text", "refusal") if isinstance(part.get(name), str)]
    is_text = len(texts) == 1 and len(part.keys() - _WITHOUT_MEANING - _ABOUT_TEXTS) == 1
    return str(texts[0]) if is_text else note(part)


def note_role(value: JsonObject) -> str:
    """The role of the message for a note: the object's own role if it has one, otherwise `user` for a tool result and
    `assistant` for everything else.
    """
    if (role := value.get("role")) in _ROLES:
        return str(role)
    return "user" if str(value["type"]).endswith(_RESULT_ENDINGS) else "assistant"


def _names(tools: Any) -> Any:
    """The names of tools, separated by commas. A tool without a name is represented by its type."""
    if not isinstance(tools, list):
        return _meaning(tools)
    named = [tool.get("name") or tool.get("type") for tool in tools if isinstance(tool, dict)]
    return ", ".join(name for name in named if isinstance(name, str))


def _meaning(value: Any) -> Any:
    """A value without its meaningless parts, at all levels of nesting: fields that only the server that created them
    can use, and files.
    """
    if isinstance(value, dict):
        inner = {
            name: _meaning(field) for name, field in value.items() if name == "type" or name not in _WITHOUT_MEANING
        }
        return {name: field for name, field in inner.items() if field is not None}
    if isinstance(value, list):
        return [_meaning(element) for element in value]
    return _FILE.sub(_NO_FILE, value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    """The text for a value: a text unchanged, a list of text parts as one line for each part, everything
    else as JSON.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(_is_text(part) for part in value):
        return "\n".join(part["text"] for part in value)
    return json.dumps(value, ensure_ascii=False)


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.keys() == {"type", "text"} and isinstance(part["text"], str)


def introduction(functions: Iterable[JsonObject]) -> str:
    """A text with the definitions of functions. A function that has only a name is listed by its name."""
    lines = (f"<function>{_definition(function)}</function>" for function in functions)
    return "\n".join(["<functions>", *lines, "</functions>"])


def _definition(function: JsonObject) -> str:
    fields = {name: function[name] for name in ("description", "name", "parameters") if name in function}
    return json.dumps(fields, ensure_ascii=False)
