"""All formats in which models write tool calls, by name (`TOOL_FORMATS`), and the formats of one model (`Dialect`).

`read_dialect` detects from a model's chat template how the model writes reasoning and tool calls.
"""

from dataclasses import dataclass

from genai_server.errors import ConfigurationError
from genai_server.text.answers.reasoning import HARMONY, ReasoningFormat, detect_reasoning
from genai_server.text.tool_formats.harmony import CHANNEL, Harmony
from genai_server.text.tool_formats.json_calls import GRANITE, NEMOTRON, PHI4MINI, Hermes, Mistral
from genai_server.text.tool_formats.llama import Llama3Json, Pythonic
from genai_server.text.tool_formats.python_calls import LFM2, OLMO3
from genai_server.text.tool_formats.sections import DeepSeek, Kimi
from genai_server.text.tool_formats.tagged import GLM, MINIMAX, QWEN3_CODER
from genai_server.text.tool_formats.tool_format import ToolFormat

_ALL: tuple[ToolFormat, ...] = (
    *(Hermes(), Llama3Json(), Pythonic(), Mistral(), PHI4MINI, GRANITE, Kimi(), Harmony()),
    *(DeepSeek("deepseek_v3", is_fenced=True), DeepSeek("deepseek_v31", is_fenced=False), QWEN3_CODER, GLM, MINIMAX),
    *(LFM2, OLMO3, NEMOTRON),
)
# All tool call formats, keyed by name.
TOOL_FORMATS = {one.name: one for one in _ALL}
# Words that must all occur in a chat template, and the format they indicate, most specific first. None stands for
# unsupported ones: JSON in a tag with the function's name, which Llama 3.1 can be asked to write, MiniMax M3's tags
# behind a mark, and Apriel's lists.
_SIGNS: tuple[tuple[tuple[str, ...], str | None], ...] = (
    ((CHANNEL, "functions."), "harmony"),
    (("<｜tool▁sep｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁sep｜>",), "deepseek_v31"),
    (("<|tool_call_argument_begin|>",), "kimi"),
    (("<minimax:tool_call>",), "minimax"),
    (("<tool_call>", "<parameter="), "qwen3_coder"),
    (("<function=",), None),
    (("]<]minimax[>[",), None),
    (("<tool_calls>[",), None),
    (("<arg_key>",), "glm"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|tool_list_start|>",), "lfm2"),
    (("<functions>", "<function_calls>"), "olmo3"),
    (("<TOOLCALL>",), "nemotron"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<tool_call>",), "hermes"),
    (("<|tool_call|>", "<|start_of_role|>"), "granite"),
    (("<|tool_call|>",), "phi4mini"),
    (("<|tool|>",), "phi4mini"),
    (("functools[",), "phi4mini"),
    (("func_name1(",), "pythonic"),
    (('{"name": function name, "parameters":',), "llama3_json"),
    (("<|python_tag|>",), "llama3_json"),
    # LFM2.5, some of whose templates show no marker.
    (("List of tools: [", "<|im_start|>"), "lfm2"),
)


def detect_tool_format(template_source: str) -> str | None:
    """Return the name of the tool call format that a chat template uses; None if it uses no supported format.

    `template_source` is the source of the template.
    """
    return next((name for words, name in _SIGNS if all(word in template_source for word in words)), None)


AUTOMATIC, NO_TOOLS = "auto", "none"


@dataclass(frozen=True)
class Dialect:
    """The formats in which a model writes tool calls (`tool_format`) and reasoning (`reasoning`), as it was trained to.

    A field is None if the model writes none. `read_dialect` creates it.
    """

    tool_format: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None


PLAIN = Dialect()


def read_dialect(template_source: str, tool_parser: str = AUTOMATIC) -> Dialect:
    """Detect from the source of a chat template in which formats its model writes reasoning and tool calls.

    `tool_parser` is the name of the tool call format; "auto" detects it, and "none" stands for a model without tool
    calls. Raises ConfigurationError for an unknown name.
    """
    if tool_parser not in (AUTOMATIC, NO_TOOLS, *TOOL_FORMATS):
        names = ", ".join((AUTOMATIC, NO_TOOLS, *TOOL_FORMATS))
        raise ConfigurationError(f"GENAI_TOOL_PARSER={tool_parser}: must be one of: {names}")
    name = detect_tool_format(template_source) if tool_parser == AUTOMATIC else tool_parser
    tool_format = None if name in (None, NO_TOOLS) else TOOL_FORMATS[name]
    # A Harmony model writes calls as messages, like everything else.
    reasoning = HARMONY if isinstance(tool_format, Harmony) else detect_reasoning(template_source)
    return Dialect(tool_format, reasoning)
