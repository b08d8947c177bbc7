"""Calls and results of tools that another provider ran, and its kinds of content, as texts of a conversation's history.

A program that changes its provider sends the complete conversation along: the first provider's web searches, executed
code, tool servers and whatever its API gets next. This server runs no such tool, and chat templates have no form for
them, so the model reads each as a note: the item's type and then its fields, one a line.
"""

import json
import re
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
    """The text that stands for a call or a result of another provider's tool.

    It has all texts and numbers of the value, except ids, states, encrypted content and files, and of tools only the
    names: the model cannot call them.
    """
    lines = [f"[{value['type']}]"]
    for name, field in value.items():
        field = _names(field) if name == "tools" else _meaning(field)
        if name not in _WITHOUT_MEANING and field not in (None, "", [], {}):
            lines.append(f"{name}: {_text(field)}")
    return "\n".join(lines)


def part_text(part: JsonObject) -> str:
    """The text of a content part of an unknown type: its own if it consists of that alone, else a note."""
    texts = [part[name] for name in ("text", "refusal") if isinstance(part.get(name), str)]
    is_text = len(texts) == 1 and len(part.keys() - _WITHOUT_MEANING - _ABOUT_TEXTS) == 1
    return str(texts[0]) if is_text else note(part)


def note_role(value: JsonObject) -> str:
    """The role of the message that a note is part of: the value's own role if it has one, the user's for a result,
    else the assistant's.
    """
    if (role := value.get("role")) in _ROLES:
        return str(role)
    return "user" if str(value["type"]).endswith(_RESULT_ENDINGS) else "assistant"


def _names(tools: Any) -> Any:
    """The names of tools, with a comma between them; those without a name by their types."""
    if not isinstance(tools, list):
        return _meaning(tools)
    named = [tool.get("name") or tool.get("type") for tool in tools if isinstance(tool, dict)]
    return ", ".join(name for name in named if isinstance(name, str))


def _meaning(value: Any) -> Any:
    """A value without what means something only to its server, in all objects inside of it."""
    if isinstance(value, dict):
        inner = {
            name: _meaning(field) for name, field in value.items() if name == "type" or name not in _WITHOUT_MEANING
        }
        return {name: field for name, field in inner.items() if field is not None}
    if isinstance(value, list):
        return [_meaning(element) for element in value]
    return _FILE.sub(_NO_FILE, value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    """A text as it is, content parts as their texts, and everything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(_is_text(part) for part in value):
        return "\n".join(part["text"] for part in value)
    return json.dumps(value, ensure_ascii=False)


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.keys() == {"type", "text"} and isinstance(part["text"], str)
