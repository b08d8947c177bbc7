"""How a model writes reasoning and tool calls, by its chat template."""

from dataclasses import dataclass

from genai_server.errors import ConfigurationError
from genai_server.text.answers.reasoning import HARMONY, ReasoningFormat, detect_reasoning
from genai_server.text.tool_formats.all_formats import TOOL_FORMATS, detect_tool_format
from genai_server.text.tool_formats.harmony import Harmony
from genai_server.text.tool_formats.tool_format import ToolFormat

AUTOMATIC, NO_TOOLS = "auto", "none"


@dataclass(frozen=True)
class Dialect:
    """The reasoning and tool call formats that a model was trained on.

    A field is None if the model has no such format.
    """

    tool_format: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None


PLAIN = Dialect()


def read_dialect(template_source: str, tool_parser: str = AUTOMATIC) -> Dialect:
    """Detect the reasoning and tool call formats from the source of a chat template.

    `tool_parser` is the name of the tool call format; with "auto" the format is detected, and with "none" there is no
    tool call format. Raises ConfigurationError for an unknown name.
    """
    if tool_parser not in (AUTOMATIC, NO_TOOLS, *TOOL_FORMATS):
        known = ", ".join((AUTOMATIC, NO_TOOLS, *TOOL_FORMATS))
        raise ConfigurationError(f"GENAI_TOOL_PARSER={tool_parser}: must be one of: {known}")
    name = detect_tool_format(template_source) if tool_parser == AUTOMATIC else tool_parser
    tool_format = None if name in (None, NO_TOOLS) else TOOL_FORMATS[name]
    # A Harmony model writes calls as messages, like everything else.
    reasoning = HARMONY if isinstance(tool_format, Harmony) else detect_reasoning(template_source)
    return Dialect(tool_format, reasoning)
