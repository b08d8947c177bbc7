"""What the Messages API converts or removes in a request instead of refusing the request.

`convert` turns content blocks of unknown types into text blocks. Anthropic's servers run tools of their own, such as
web search, and have blocks for these and for other features. Agents send such blocks back in the conversation history,
even to another server. The table `LEFT_OUT` says what is removed because this server does not support it, such as tools
that only Anthropic's servers run. With the setting GENAI_STRICT nothing is removed, and such requests are refused.
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
    """Replace content blocks of unknown types in the messages of a body by text blocks that describe them. Also
    corrects inputs of tool calls that were cut off. Changes `body` in place. Returns the location and new form of each
    change, such as `messages[3].content[0] (search_result as text)`.
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
    """Replace content blocks by text blocks that describe them, in place. `blocks` has each block with its location in
    the body. Blocks without a type are not changed. Returns the location and former type of each changed block.
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
    """Yield the blocks of a message that are to add or remove a tool but cannot have this effect, each with its
    location in the body: the tool exists only on Anthropic's servers, or the message does not have the role system.

    `location` is the location of `message` in the body, such as `messages[3]`.
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
    """Remove additions and removals of tools that exist only on Anthropic's servers from the field `tool_changes` of
    summaries (blocks of type `compaction`), in place. Yields the location of each changed field.
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
    """Replace inputs of tool calls that are not JSON objects, because the model was cut off within the call, by
    objects, in place. Yields the location of each changed input.
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
    """Replace documents and images that this server cannot read by text blocks that say what was left out, in place.
    Yields the location of each change.
    """
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
    """Replace documents that are files, such as PDFs, by text blocks that say that they were left out, and remove the
    field `citations` from all other documents, in place. `path` says where in the body the documents are, such as
    `messages[].content[]`. Yields the location of each change.
    """
    for location, block in objects_at(body, path):
        if block.get("type") == "document" and _is_readable(block.get("source")):
            yield from (f"{location}.{field}" for field in remove(block, "citations"))
        else:
            yield from (f"{location}{suffix}" for suffix in replace_media(block, DOCUMENTS, "text", ""))


def _is_readable(source: Any) -> bool:
    """Return whether the server can read a document with this field `source`: it has texts and images in it, and is not
    a file.
    """
    match source:
        case {"type": "text", "data": str()} | {"type": "content", "content": str()}:
            return True
        case {"type": "content", "content": list(blocks)}:
            return all(isinstance(block, dict) and block.get("type") in ("text", "image") for block in blocks)
    return False


def _leave_out_images(body: Any) -> list[str]:
    """Replace images that this server cannot read, such as stored files, by text blocks that say that an image was left
    out, in place. Images in the user's last message are not changed, except those in tool results. Returns the location
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
    """Remove the field `citations` from text blocks, in place, because citations refer to what another server has
    found. Returns the location of each removed field.
    """
    locations = []
    for path in (*_MEDIA_PATHS, *_DOCUMENT_PATHS, "system[]"):
        for location, block in objects_at(body, path):
            if block.get("type") == "text" and block.pop("citations", None):
                locations.append(f"{location}.citations")
    return locations


def _leave_out_callers(body: Any) -> list[str]:
    """Remove the field `allowed_callers` from tools in which it is anything but the model alone, in place: here only
    the model calls tools, and not programs as on Anthropic's servers. Returns the location of each removed field.
    """
    locations = []
    for path in ("tools[]", _DEFINITIONS):
        for location, tool in objects_at(body, path):
            if tool.get("allowed_callers") not in (None, ["direct"]):
                locations += [f"{location}.{field}" for field in remove(tool, "allowed_callers")]
    return locations


def _effort(body: Any) -> list[str]:
    """Remove the field `output_config.effort` of a body, in place, if the body turns thinking off. Returns a list with
    the path of the field if it was removed, otherwise an empty list.
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
