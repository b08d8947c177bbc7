"""Converts blocks in a conversation that this server does not know to text.

Anthropic's servers run tools of their own, such as web search, and have blocks for these and for other features,
including future ones. Agents send such blocks back in the conversation history, even to another server.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from genai_server.apis.messages.client_tools import CLIENT_TOOLS
from genai_server.apis.shared.foreign_tools import note
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import nameable, objects_at

_TEXTS = ("text", "image", "document")
_CHANGES = ("tool_addition", "tool_removal")
_KNOWN = {
    "messages[].content[]": (
        *_TEXTS,
        *("thinking", "redacted_thinking", "tool_use", "tool_result", "compaction"),
        *("mcp_tool_use", "mcp_tool_result"),
        *_CHANGES,
    ),
    "messages[].content[].content[]": (*_TEXTS, "tool_reference"),
    "messages[].content[].source.content[]": ("text", "image"),
    "messages[].content[].content[].source.content[]": ("text", "image"),
}
# Not part of a note: descriptions of tools that only the server that wrote them can call.
_TOOLS = "tools"


def convert(body: Any) -> list[str]:
    """Replace blocks of unknown types in a body by their text. Returns the location of each, with its new form."""
    found: list[str] = []
    for location, message in objects_at(body, "messages[]"):
        if message.get("role") == "system" and "content" not in message and "output_config" in message:
            message["content"] = ""
        found += _replace(_changes_without_form(location, message))
    for path, known in _KNOWN.items():
        blocks = objects_at(body, path)
        found += _replace((location, block) for location, block in blocks if block.get("type") not in known)
    return [*found, *_remove_changes_without_form(body), *_convert_inputs(body)]


def _replace(blocks: Iterable[tuple[str, JsonObject]]) -> list[str]:
    """Turn blocks into text blocks, except those without a type. Returns their locations."""
    found = []
    for location, block in blocks:
        kind = block.get("type")
        if isinstance(kind, str):
            text = note({name: value for name, value in block.items() if name != _TOOLS})
            block.clear()
            block.update(type="text", text=text)
            found.append(f"{location} ({nameable(kind, 'a block')} as text)")
    return found


def _changes_without_form(location: str, message: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Blocks of a message that add or remove tools and cannot be followed: because only Anthropic's servers have such
    tools, or because the message is not the system's. Each comes with its location.
    """
    for inner, block in objects_at(message, "content[]"):
        if block.get("type") not in _CHANGES:
            continue
        if message.get("role") != "system" or not _is_change(block.get("tool")):
            yield f"{location}.{inner}", block


def _is_change(tool: Any) -> bool:
    match tool:
        case {"type": "tool_reference"}:
            return True
        case {"type": "tool_definition", "definition": {**definition}}:
            return definition.get("type") in (None, "custom", *CLIENT_TOOLS)
    return False


def _remove_changes_without_form(body: Any) -> Iterator[str]:
    """Remove changes of tools that only Anthropic's servers have from the summaries (`compaction`) of earlier messages.
    Yields the locations.
    """
    for location, block in objects_at(body, "messages[].content[]"):
        changes = block.get("tool_changes")
        if block.get("type") == "compaction" and isinstance(changes, list):
            block["tool_changes"] = [one for one in changes if isinstance(one, dict) and _is_change(one.get("tool"))]
            if len(block["tool_changes"]) < len(changes):
                yield f"{location}.tool_changes (without those of other tools)"


def _convert_inputs(body: Any) -> Iterator[str]:
    """Turn inputs of tool calls that are not objects, because the call was cut off, into objects. Yields the
    locations.
    """
    for location, block in objects_at(body, "messages[].content[]"):
        if block.get("type") == "tool_use" and not isinstance(given := block.get("input"), dict):
            block["input"] = _object(given)
            yield f"{location}.input (as an object)"


def _object(given: Any) -> JsonObject:
    with suppress(ValueError):
        if isinstance(given, str) and isinstance(found := json.loads(given), dict):
            return found
    return {"input": given} if given else {}
