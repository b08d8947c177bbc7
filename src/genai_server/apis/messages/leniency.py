"""What the Messages API converts in a conversation history, and what is removed from requests because this server does
not support it, unless GENAI_STRICT is set.

Anthropic's servers run tools of their own, such as web search, and have blocks for these and for other features,
including future ones. Agents send such blocks back in the conversation history, even to another server, where they
become text.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from genai_server.apis.messages.schemas import AnthropicMessage, AnthropicTool, McpServer, McpToolset, TextBlock
from genai_server.apis.messages.tools import CLIENT_TOOLS
from genai_server.apis.shared.chat_history import note
from genai_server.http.json_response import JsonObject
from genai_server.http.leniency import (
    RemovalRules,
    history_of,
    nameable,
    objects_at,
    remove,
    remove_tools,
    replace_media,
)

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
    """Replace blocks of unknown types in a body by text blocks. Returns the location and new form of each change, such
    as `messages[3].content[0] (search_result as text)`.
    """
    changes: list[str] = []
    for location, message in objects_at(body, "messages[]"):
        if message.get("role") == "system" and "content" not in message and "output_config" in message:
            message["content"] = ""
        changes += _replace(_changes_without_form(location, message))
    for path, known_types in _KNOWN.items():
        blocks = objects_at(body, path)
        changes += _replace((location, block) for location, block in blocks if block.get("type") not in known_types)
    return [*changes, *_remove_changes_without_form(body), *_convert_inputs(body)]


def _replace(blocks: Iterable[tuple[str, JsonObject]]) -> list[str]:
    """Turn blocks, given with their locations, into text blocks in place, except blocks without a type. Returns the
    location and former type of each changed block.
    """
    changes = []
    for location, block in blocks:
        kind = block.get("type")
        if isinstance(kind, str):
            text = note({name: value for name, value in block.items() if name != _TOOLS})
            block.clear()
            block.update(type="text", text=text)
            changes.append(f"{location} ({nameable(kind, 'a block')} as text)")
    return changes


def _changes_without_form(location: str, message: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """The blocks of a message that are to add or remove tools but have no effect in this server, each with its location
    in the body.

    They have no effect if the tool exists only on Anthropic's servers, or if the message is not a system message.
    `location` is that of the message.
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
    """Remove from the summaries (blocks of type `compaction`) of earlier messages the additions and removals of tools
    that exist only on Anthropic's servers. Yields the location of each changed list.
    """
    for location, block in objects_at(body, "messages[].content[]"):
        changes = block.get("tool_changes")
        if block.get("type") == "compaction" and isinstance(changes, list):
            block["tool_changes"] = [
                change for change in changes if isinstance(change, dict) and _is_change(change.get("tool"))
            ]
            if len(block["tool_changes"]) < len(changes):
                yield f"{location}.tool_changes (without those of other tools)"


def _convert_inputs(body: Any) -> Iterator[str]:
    """Turn inputs of tool calls that are not objects, because the call was cut off, into objects. Yields the location
    of each changed input.
    """
    for location, block in objects_at(body, "messages[].content[]"):
        if block.get("type") == "tool_use" and not isinstance(value := block.get("input"), dict):
            block["input"] = _object(value)
            yield f"{location}.input (as an object)"


def _object(value: Any) -> JsonObject:
    with suppress(ValueError):
        if isinstance(value, str) and isinstance(parsed := json.loads(value), dict):
            return parsed
    return {"input": value} if value else {}


# Tools that Anthropic's servers run, or that return images. The name is followed by a version.
SERVER_TOOLS = re.compile(
    r"(advisor|browser_toolset|code_execution|computer(_toolset)?|tool_search_tool_(bm25|regex)|web_fetch"
    r"|web_search)(_\d{8})?",
    re.ASCII,
)
# Without these, the model can find no tool that is to be loaded later.
_SEARCHES = re.compile(r"tools\[\d+\] \(tool_search_tool_.*\)")
DOCUMENTS = {"document": "document"}
_MEDIA_PATHS = ("messages[].content[]", "messages[].content[].content[]")
_DOCUMENT_PATHS = tuple(f"{path}.source.content[]" for path in _MEDIA_PATHS)
_DEFINITIONS = "messages[].content[].tool.definition"
_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def _leave_out_media(body: Any) -> Iterator[str]:
    """Replace documents and images that this server cannot read by text blocks. Yields the location of each change."""
    for path in _MEDIA_PATHS:
        yield from replace_media(body, DOCUMENTS, "text", f"{path}.source.content[]")
        yield from _leave_out_documents(body, path)
    yield from _leave_out_images(body)


def _leave_out_tools(body: Any) -> list[str]:
    removed = remove_tools(body, SERVER_TOOLS.fullmatch)
    if any(map(_SEARCHES.fullmatch, removed)):
        removed += remove(body, "tools[].defer_loading")
    return removed


def _leave_out_documents(body: Any, path: str) -> Iterator[str]:
    """Replace documents that are files by text blocks, and remove the field `citations` from other documents. `path` is
    where the documents are, such as `messages[].content[]`. Yields the location of each change.
    """
    for location, block in objects_at(body, path):
        if block.get("type") == "document" and _is_readable(block.get("source")):
            yield from (f"{location}.{field}" for field in remove(block, "citations"))
        else:
            yield from (f"{location}{suffix}" for suffix in replace_media(block, DOCUMENTS, "text", ""))


def _is_readable(source: Any) -> bool:
    """Whether a document consists of text and images, rather than of a file."""
    match source:
        case {"type": "text", "data": str()} | {"type": "content", "content": str()}:
            return True
        case {"type": "content", "content": list(blocks)}:
            return all(isinstance(block, dict) and block.get("type") in ("text", "image") for block in blocks)
    return False


def _leave_out_images(body: Any) -> list[str]:
    """Replace images of unsupported kinds by text blocks, in earlier messages and in tool results. Returns the location
    of each changed block.
    """
    locations = []
    results = {"messages": body["messages"]} if isinstance(body, dict) and "messages" in body else {}
    for messages, path in (
        (history_of(body, "messages"), _MEDIA_PATHS[0]),
        (history_of(body, "messages"), _DOCUMENT_PATHS[0]),
        (results, _MEDIA_PATHS[1]),
        (results, _DOCUMENT_PATHS[1]),
    ):
        for location, block in objects_at(messages, path):
            if block.get("type") == "image" and not _has_form(block.get("source")):
                block.clear()
                block.update(type="text", text="[image left out: it is not part of the request, or of another type]")
                locations.append(f"{location} (image)")
    return locations


def _has_form(source: Any) -> bool:
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            return kind in _IMAGE_TYPES and bool(data)
        case {"type": "url", "url": str(url)}:
            return bool(url)
    return False


def _leave_out_citations(body: Any) -> list[str]:
    """Remove citations from text blocks, since they refer to what another server has found. Returns the location of
    each removed field.
    """
    locations = []
    for path in (*_MEDIA_PATHS, *_DOCUMENT_PATHS, "system[]"):
        for location, block in objects_at(body, path):
            if block.get("type") == "text" and block.pop("citations", None):
                locations.append(f"{location}.citations")
    return locations


def _leave_out_callers(body: Any) -> list[str]:
    """Remove the field `allowed_callers` of tools if it names other callers than the model itself, since only the model
    calls tools here. Returns the location of each removed field.
    """
    locations = []
    for path in ("tools[]", _DEFINITIONS):
        for location, tool in objects_at(body, path):
            if tool.get("allowed_callers") not in (None, ["direct"]):
                locations += [f"{location}.{field}" for field in remove(tool, "allowed_callers")]
    return locations


def _effort(body: Any) -> list[str]:
    """Remove the field `output_config.effort` if thinking is off. Returns its path in a list, which is empty if nothing
    was removed.
    """
    is_off = any(thinking.get("type") in ("disabled", "between_tools") for _, thinking in objects_at(body, "thinking"))
    return remove(body, "output_config.effort") if is_off else []


LEFT_OUT = RemovalRules(
    # Fields that cannot affect answers of this server's models, or that only save time or tokens.
    fields=(
        "billing_policy",
        "container",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "output_config.task_budget",
        "safeguards",
        "speed",
        "user_profile_id",
        "workspace_id",
    ),
    rules=(_leave_out_media, _leave_out_citations, _leave_out_tools, _leave_out_callers, _effort),
    forms={
        "messages[]": AnthropicMessage,
        "system[]": TextBlock,
        "tools[]": AnthropicTool | McpToolset,
        "mcp_servers[]": McpServer,
    },
)
