"""What is removed from requests to the Messages API because this server does not support it, unless GENAI_STRICT is
set.
"""

import re
from collections.abc import Iterator
from typing import Any

from genai_server.apis.messages.schemas import AnthropicMessage, AnthropicTool, McpServer, McpToolset, TextBlock
from genai_server.http.leniency import LeftOut, history_of, objects_at, remove, remove_tools, replace_media

# Tools that Anthropic's servers run, or that return images. The name is followed by a version.
SERVER_TOOLS = re.compile(
    r"(advisor|browser_toolset|code_execution|computer(_toolset)?|tool_search_tool_(bm25|regex)|web_fetch"
    r"|web_search)(_\d{8})?",
    re.ASCII,
)
# Without these, the model can find no tool that is to be loaded later.
_SEARCHES = re.compile(r"tools\[\d+\] \(tool_search_tool_.*\)")
DOCUMENTS = {"document": "document"}
_PLACES_OF_MEDIA = ("messages[].content[]", "messages[].content[].content[]")
_PLACES_IN_DOCUMENTS = tuple(f"{path}.source.content[]" for path in _PLACES_OF_MEDIA)
_DEFINITIONS = "messages[].content[].tool.definition"
_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def _leave_out_media(body: Any) -> Iterator[str]:
    """Replace documents and images that this server cannot read by a text. Yields the locations."""
    for path in _PLACES_OF_MEDIA:
        yield from replace_media(body, DOCUMENTS, "text", f"{path}.source.content[]")
        yield from _leave_out_documents(body, path)
    yield from _leave_out_images(body)


def _leave_out_tools(body: Any) -> list[str]:
    removed = remove_tools(body, SERVER_TOOLS.fullmatch)
    if any(map(_SEARCHES.fullmatch, removed)):
        removed += remove(body, "tools[].defer_loading")
    return removed


def _leave_out_documents(body: Any, path: str) -> Iterator[str]:
    """Replace documents that are files by a text, and remove `citations` from the others. Yields the locations."""
    for location, block in objects_at(body, path):
        if block.get("type") == "document" and _is_readable(block.get("source")):
            yield from (f"{location}.{field}" for field in remove(block, "citations"))
        else:
            yield from (f"{location}{rest}" for rest in replace_media(block, DOCUMENTS, "text", ""))


def _is_readable(source: Any) -> bool:
    """Whether a document consists of text and images, rather than of a file."""
    match source:
        case {"type": "text", "data": str()} | {"type": "content", "content": str()}:
            return True
        case {"type": "content", "content": list(blocks)}:
            return all(isinstance(block, dict) and block.get("type") in ("text", "image") for block in blocks)
    return False


def _leave_out_images(body: Any) -> list[str]:
    """Replace images of unsupported kinds by a text, in earlier messages and in tool results. Returns the locations."""
    found = []
    results = {"messages": body["messages"]} if isinstance(body, dict) and "messages" in body else {}
    for messages, path in (
        (history_of(body, "messages"), _PLACES_OF_MEDIA[0]),
        (history_of(body, "messages"), _PLACES_IN_DOCUMENTS[0]),
        (results, _PLACES_OF_MEDIA[1]),
        (results, _PLACES_IN_DOCUMENTS[1]),
    ):
        for location, block in objects_at(messages, path):
            if block.get("type") == "image" and not _has_form(block.get("source")):
                block.clear()
                block.update(type="text", text="[image left out: it is not part of the request, or of another type]")
                found.append(f"{location} (image)")
    return found


def _has_form(source: Any) -> bool:
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            return kind in _IMAGE_TYPES and bool(data)
        case {"type": "url", "url": str(url)}:
            return bool(url)
    return False


def _leave_out_citations(body: Any) -> list[str]:
    """Remove citations from text blocks, since they refer to what another server has found. Returns the locations."""
    found = []
    for path in (*_PLACES_OF_MEDIA, *_PLACES_IN_DOCUMENTS, "system[]"):
        for location, block in objects_at(body, path):
            if block.get("type") == "text" and block.pop("citations", None):
                found.append(f"{location}.citations")
    return found


def _leave_out_callers(body: Any) -> list[str]:
    """Remove `allowed_callers` that name anything but the model itself, since only the model calls tools here. Returns
    the locations.
    """
    found = []
    for path in ("tools[]", _DEFINITIONS):
        for location, tool in objects_at(body, path):
            if tool.get("allowed_callers") not in (None, ["direct"]):
                found += [f"{location}.{field}" for field in remove(tool, "allowed_callers")]
    return found


def _effort(body: Any) -> list[str]:
    """Remove `output_config.effort` if thinking is off. Returns the location."""
    is_off = any(thinking.get("type") in ("disabled", "between_tools") for _, thinking in objects_at(body, "thinking"))
    return remove(body, "output_config.effort") if is_off else []


LEFT_OUT = LeftOut(
    # They cannot affect answers of this server's models, or only save time or tokens.
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
