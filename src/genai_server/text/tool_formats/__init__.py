"""The formats in which models write tool calls, one module each."""

from genai_server.text.tool_formats.base import ANY_OBJECT, Call, Calls, Tool, ToolFormat
from genai_server.text.tool_formats.hermes import Hermes
from genai_server.text.tool_formats.llama3_json import Llama3Json
from genai_server.text.tool_formats.mistral import Mistral
from genai_server.text.tool_formats.phi4mini import Phi4Mini
from genai_server.text.tool_formats.pythonic import Pythonic

TOOL_FORMATS: dict[str, ToolFormat] = {
    one.name: one for one in (Hermes(), Llama3Json(), Pythonic(), Mistral(), Phi4Mini())
}
# What chat templates say, most telling first. The first two are other formats with tags of the same name: Qwen3-Coder's
# and GLM's, whose arguments are XML.
_TELLING: tuple[tuple[str, str | None], ...] = (
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

__all__ = ["ANY_OBJECT", "TOOL_FORMATS", "Call", "Calls", "Tool", "ToolFormat", "detect"]


def detect(template_source: str) -> str | None:
    """The name of the tool format that a chat template speaks of, None if it speaks of none that is known."""
    return next((name for words, name in _TELLING if words in template_source), None)
