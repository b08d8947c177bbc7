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
# In a document, which becomes a text.
_IN_DOCUMENTS = {**DOCUMENTS, "image": "image"}
_PLACES_OF_MEDIA = ("messages[].content[]", "messages[].content[].content[]")


def leave_out(body: Any) -> list[str]:
    """Remove unsupported parts from a body; returns the locations removed."""
    found = remove(body, *WITHOUT_EFFECT)
    for path in _PLACES_OF_MEDIA:
        found += replace_media(body, _IN_DOCUMENTS, "text", f"{path}.source.content[]")
        found += _documents_to_text(body, path)
        found += replace_media(body, DOCUMENTS, "text", path)
    return found + remove_tools(body, SERVER_TOOLS.fullmatch) + _effort(body)


def _documents_to_text(body: Any, path: str) -> Iterator[str]:
    """Convert plain-text documents to text blocks; yields the locations of fields dropped from them."""
    for place, block in objects_at(body, path):
        text = _plain_text(block.get("source")) if block.get("type") == "document" else None
        if text is None:
            continue
        about = [block[field] for field in ("title", "context") if isinstance(block.get(field), str)]
        yield from (f"{place}.{field}" for field in remove(block, "citations"))
        block.clear()
        block.update(type="text", text="\n".join([*about, text]))


def _plain_text(source: Any) -> str | None:
    match source:
        case {"type": "text", "data": str(text)} | {"type": "content", "content": str(text)}:
            return text
        case {"type": "content", "content": list(blocks)}:
            if all(isinstance(block, dict) and isinstance(block.get("text"), str) for block in blocks):
                return "\n".join(block["text"] for block in blocks)
    return None


def _effort(body: Any) -> list[str]:
    """Drop `effort` if thinking is disabled."""
    thinks = not any(thinking.get("type") == "disabled" for _, thinking in objects_at(body, "thinking"))
    return [] if thinks else remove(body, "output_config.effort")
