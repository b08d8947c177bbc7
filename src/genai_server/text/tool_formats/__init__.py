"""The formats in which models write tool calls, one module each."""

from genai_server.text.tool_formats.base import Calls, Tool, ToolFormat
from genai_server.text.tool_formats.hermes import Hermes

TOOL_FORMATS: dict[str, ToolFormat] = {one.name: one for one in (Hermes(),)}

__all__ = ["TOOL_FORMATS", "Calls", "Tool", "ToolFormat", "detect"]


def detect(template_source: str) -> str | None:
    """The name of the tool format that a chat template speaks of, None if it speaks of none that is known."""
    return "hermes" if "<tool_call>" in template_source else None
