"""All tool call formats, and the detection of a chat template's format."""

from genai_server.text.tool_formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from genai_server.text.tool_formats.granite import Granite
from genai_server.text.tool_formats.harmony import CHANNEL, Harmony
from genai_server.text.tool_formats.hermes import Hermes
from genai_server.text.tool_formats.kimi import Kimi
from genai_server.text.tool_formats.llama3_json import Llama3Json
from genai_server.text.tool_formats.mistral import Mistral
from genai_server.text.tool_formats.phi4mini import Phi4Mini
from genai_server.text.tool_formats.pythonic import Pythonic
from genai_server.text.tool_formats.tagged import GLM, MINIMAX, QWEN3_CODER
from genai_server.text.tool_formats.tool_format import ToolFormat

_ALL: tuple[ToolFormat, ...] = (
    *(Hermes(), Llama3Json(), Pythonic(), Mistral(), Phi4Mini(), Granite(), Kimi(), Harmony()),
    *(DEEPSEEK_V3, DEEPSEEK_V31, QWEN3_CODER, GLM, MINIMAX),
)
TOOL_FORMATS = {one.name: one for one in _ALL}
# Words that must all occur in a chat template, and the format they indicate, most specific first. None stands for an
# unsupported one: JSON in a tag with the function's name, which Llama 3.1 can be asked to write.
_SIGNS: tuple[tuple[tuple[str, ...], str | None], ...] = (
    ((CHANNEL, "functions."), "harmony"),
    (("<｜tool▁sep｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁sep｜>",), "deepseek_v31"),
    (("<|tool_call_argument_begin|>",), "kimi"),
    (("<minimax:tool_call>",), "minimax"),
    (("<tool_call>", "<parameter="), "qwen3_coder"),
    (("<function=",), None),
    (("<arg_key>",), "glm"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<tool_call>",), "hermes"),
    (("<|tool_call|>", "<|start_of_role|>"), "granite"),
    (("<|tool_call|>",), "phi4mini"),
    (("<|tool|>",), "phi4mini"),
    (("functools[",), "phi4mini"),
    (("func_name1(",), "pythonic"),
    (('{"name": function name, "parameters":',), "llama3_json"),
    (("<|python_tag|>",), "llama3_json"),
)


def detect(template_source: str) -> str | None:
    """The name of the tool format that a chat template uses, or None if it uses no known one."""
    return next((name for words, name in _SIGNS if all(word in template_source for word in words)), None)
