"""How a model writes reasoning and tool calls."""

from dataclasses import dataclass

from genai_server.errors import ConfigurationError
from genai_server.text.answers.reasoning import HARMONY, ReasoningFormat, detect_reasoning
from genai_server.text.tool_formats.harmony import Harmony
from genai_server.text.tool_formats.registry import TOOL_FORMATS, detect
from genai_server.text.tool_formats.tool_format import ToolFormat

AUTOMATIC, NO_TOOLS = "auto", "none"


@dataclass(frozen=True)
class Dialect:
    """The formats that a model was trained on, each None if it has none."""

    tool_format: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None


PLAIN = Dialect()


def read_dialect(template_source: str, tool_parser: str = AUTOMATIC) -> Dialect:
    """Detect the dialect from a chat template. `tool_parser` overrides the tool call format, or disables it.

    Raises ConfigurationError for an unknown name.
    """
    if tool_parser not in (AUTOMATIC, NO_TOOLS, *TOOL_FORMATS):
        known = ", ".join((AUTOMATIC, NO_TOOLS, *TOOL_FORMATS))
        raise ConfigurationError(f"--tool-parser or GENAI_TOOL_PARSER={tool_parser}: must be one of: {known}")
    name = detect(template_source) if tool_parser == AUTOMATIC else tool_parser
    tool_format = None if name in (None, NO_TOOLS) else TOOL_FORMATS[name]
    # A Harmony model writes calls as messages, like everything else.
    reasoning = HARMONY if isinstance(tool_format, Harmony) else detect_reasoning(template_source)
    return Dialect(tool_format, reasoning)
