"""Tool calls as Phi-4-mini writes them: a JSON array in `<|tool_call|>` tags.

    <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]<|/tool_call|>

With other prompts it writes `functools[…]` without an end, or one object instead of the array. The result of a call
has a role, and so a token, of its own, `<|tool_response|>`; `<|tool|>` stands before the tools. (Tokenizer and model
card of Phi-4-mini-instruct; chat templates for it of vLLM and llama.cpp.)
"""

import re
from collections.abc import Mapping, Sequence

from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.grammars.lark import ANYTHING, SPACES, marker, quoted, separated
from genai_server.text.tool_formats.call_object import lark_object, read_call_list, write_call_object
from genai_server.text.tool_formats.tool_format import Call, Calls, Tool, random_id, read_closing

_OPENING, _CLOSING = "<|tool_call|>", "<|/tool_call|>"
_FUNCTOOLS = "functools"


class Phi4Mini:
    """See the module docstring."""

    name = "phi4mini"
    result_role = "tool_response"
    shown_tokens = (_OPENING, _CLOSING)
    beginnings = "<f"
    opening = _OPENING

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take(_OPENING)) and not (yield from text.take(_FUNCTOOLS)):
            return False
        if not (yield from read_call_list(text, calls)):
            return False
        yield from read_closing(text, _CLOSING)
        return True

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        objects, closing = separated("object", ", ", several=parallel), marker(_CLOSING, opaque_tokens)
        return f"calls: opening {quoted('[')} {objects} {quoted(']')} {closing}\n" + lark_object(tools)

    def lark_beginning(self, names: Sequence[str]) -> str:
        return rf"{ANYTHING}({re.escape(_OPENING)}|{_FUNCTOOLS}{SPACES}[\[{{])"

    def write_calls(self, calls: Sequence[Call]) -> str:
        return f"{_OPENING}[{', '.join(map(write_call_object, calls))}]{_CLOSING}"

    def new_id(self) -> str:
        return random_id()
