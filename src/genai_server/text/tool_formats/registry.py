"""All formats in which models write tool calls, one module each, and which of them a chat template names."""

from genai_server.text.tool_formats.hermes import Hermes
from genai_server.text.tool_formats.llama3_json import Llama3Json
from genai_server.text.tool_formats.mistral import Mistral
from genai_server.text.tool_formats.phi4mini import Phi4Mini
from genai_server.text.tool_formats.pythonic import Pythonic
from genai_server.text.tool_formats.tool_format import ToolFormat

TOOL_FORMATS: dict[str, ToolFormat] = {
    one.name: one for one in (Hermes(), Llama3Json(), Pythonic(), Mistral(), Phi4Mini())
}
# Words of chat templates and the format that they show, the surest first. The first two formats are not known: those of
# Qwen3-Coder and GLM, with tags of the same names but XML arguments.
_SIGNS: tuple[tuple[str, str | None], ...] = (
    ("<function=", None),
    ("<arg_key>", None),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("<|tool_call|>", "phi4mini"),
    ("<|tool|>", "phi4mini"),
    ("functools[", "phi4mini"),
    ("func_name1(", "pythonic"),
    ('{"name": function name, "parameters":', "llama3_json"),
    ("<|python_tag|>", "llama3_json"),
)


def detect(template_source: str) -> str | None:
    """The name of the tool format that a chat template uses, or None if it uses no known one."""
    return next((name for words, name in _SIGNS if words in template_source), None)
