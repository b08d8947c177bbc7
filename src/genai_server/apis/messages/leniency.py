"""What the lenient Messages API accepts and removes although this server does not support it."""

import re
from collections.abc import Iterator
from typing import Any

from genai_server.http.leniency import objects_at, remove, remove_tools, replace_media

# Fields that cannot affect answers of this server's models, or only save time or tokens.
WITHOUT_EFFECT = (
    "container",
    "context_management",
    "inference_geo",
    "mcp_servers",
    "speed",
    "tools[].defer_loading",
)
# Tools that Anthropic's servers run, or that return images. The name is followed by a version.
SERVER_TOOLS = re.compile(
    r"(code_execution|computer|mcp_toolset|tool_search_tool_(bm25|regex)|web_fetch|web_search)(_\d{8})?", re.ASCII
)
DOCUMENTS = {"document": "document"}
_PLACES_OF_MEDIA = ("messages[].content[]", "messages[].content[].content[]")


def leave_out(body: Any) -> list[str]:
    """Remove unsupported parts from a body; returns the locations removed."""
    found = remove(body, *WITHOUT_EFFECT)
    for path in _PLACES_OF_MEDIA:
        found += replace_media(body, DOCUMENTS, "text", f"{path}.source.content[]")
        found += _leave_out_documents(body, path)
    return found + remove_tools(body, SERVER_TOOLS.fullmatch) + _effort(body)


def _leave_out_documents(body: Any, path: str) -> Iterator[str]:
    """Replace documents that are files by a note, and remove `citations` from the others; yields the locations."""
    for place, block in objects_at(body, path):
        if block.get("type") == "document" and _is_readable(block.get("source")):
            yield from (f"{place}.{field}" for field in remove(block, "citations"))
        else:
            yield from (f"{place}{rest}" for rest in replace_media(block, DOCUMENTS, "text", ""))


def _is_readable(source: Any) -> bool:
    """Whether a document consists of text and images."""
    match source:
        case {"type": "text", "data": str()} | {"type": "content", "content": str()}:
            return True
        case {"type": "content", "content": list(blocks)}:
            return all(isinstance(block, dict) and block.get("type") in ("text", "image") for block in blocks)
    return False


def _effort(body: Any) -> list[str]:
    """Drop `effort` if thinking is disabled."""
    thinks = not any(thinking.get("type") == "disabled" for _, thinking in objects_at(body, "thinking"))
    return [] if thinks else remove(body, "output_config.effort")
