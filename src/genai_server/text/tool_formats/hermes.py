"""Tool calls as Hermes and Qwen 2.5 and 3 write them: one JSON object in `<tool_call>` tags each, on lines of its own.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

(Chat templates of Hermes-2-Pro, Qwen2.5-Instruct and Qwen3.)
"""

from collections.abc import Mapping, Sequence

from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.grammars.lark import ANYTHING, marker, quoted, separated
from genai_server.text.tool_formats.call_object import lark_object, read_call_object, write_call_object
from genai_server.text.tool_formats.tool_format import Call, Calls, Tool, random_id, read_closing

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"


class Hermes:
    """See the module docstring."""

    name = "hermes"
    result_role = "tool"
    shown_tokens = (_OPENING, _CLOSING)
    beginnings = "<"
    opening = _OPENING

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take(_OPENING)) or not (yield from read_call_object(text, calls)):
            return False
        yield from read_closing(text, _CLOSING)
        return True

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        calls, newline = separated("call", "\n", several=parallel), quoted("\n")
        closing = marker(_CLOSING, opaque_tokens)
        return f"calls: {calls}\ncall: opening {newline} object {newline} {closing}\n" + lark_object(tools)

    def lark_beginning(self, names: Sequence[str]) -> str:
        return f"{ANYTHING}{_OPENING}"

    def write_calls(self, calls: Sequence[Call]) -> str:
        return "\n".join(f"{_OPENING}\n{write_call_object(call)}\n{_CLOSING}" for call in calls)

    def new_id(self) -> str:
        return random_id()
