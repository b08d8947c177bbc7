"""Tool calls as Granite 3 writes them: a JSON array after a token, without an end.

    <|tool_call|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]

Granite 3.1 now and then writes the marker without its bars. The result of a call has the role `tool_response`.
Granite 4 writes as Hermes does. (Model cards and chat templates of Granite 3.0 to 3.3 and 4.0.)
"""

import re
from collections.abc import Mapping, Sequence

from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.grammars.lark import ANYTHING, quoted, separated
from genai_server.text.tool_formats.call_object import lark_object, read_call_list, write_call_object
from genai_server.text.tool_formats.tool_format import Call, Calls, Tool, random_id

_OPENING, _WITHOUT_BARS = "<|tool_call|>", "<tool_call>"


class Granite:
    """See the module docstring."""

    name = "granite"
    result_role = "tool_response"
    shown_tokens = (_OPENING, _WITHOUT_BARS)
    beginnings = "<"
    opening = _OPENING

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take(_OPENING)) and not (yield from text.take(_WITHOUT_BARS)):
            return False
        return (yield from read_call_list(text, calls))

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        objects = separated("object", ", ", several=parallel)
        return f"calls: opening {quoted('[')} {objects} {quoted(']')}\n" + lark_object(tools)

    def lark_beginning(self, names: Sequence[str]) -> str:
        return f"{ANYTHING}({re.escape(_OPENING)}|{_WITHOUT_BARS})"

    def write_calls(self, calls: Sequence[Call]) -> str:
        return f"{_OPENING}[{', '.join(map(write_call_object, calls))}]"

    def new_id(self) -> str:
        return random_id()
