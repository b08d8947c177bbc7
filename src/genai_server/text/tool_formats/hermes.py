"""Tool calls as Hermes and Qwen 2.5 and 3 write them: one JSON object in `<tool_call>` tags each, on lines of its own.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Oslo"}}
    </tool_call>

(Chat templates of Hermes-2-Pro, Qwen2.5-Instruct and Qwen3.)
"""

from collections.abc import Callable, Sequence

from genai_server.text.lookahead import Lookahead, Reader
from genai_server.text.tool_formats.base import Calls, Tool, random_id
from genai_server.text.tool_formats.call_object import read_call_object

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"


class Hermes:
    """See the module."""

    name = "hermes"
    shown_tokens = (_OPENING, _CLOSING)
    beginnings = "<"

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take(_OPENING)) or not (yield from read_call_object(text, calls)):
            return False
        yield from text.skip_space()
        return (yield from text.take_last(_CLOSING))

    def lark(self, tools: Sequence[Tool], *, parallel: bool, token: Callable[[str], str]) -> str:
        return ""

    def new_id(self) -> str:
        return random_id()
