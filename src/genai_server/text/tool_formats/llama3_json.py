"""Tool calls as Llama 3.1 to 4 write them in JSON: objects with "parameters", `;` between several.

    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}

The tag, or `<|python_start|>` with `<|python_end|>` after the calls, may be missing; then calls begin a line.
(Meta's prompt formats of Llama 3.1, "JSON based tool calling", and the chat templates of Llama 3.2 and 4.)
"""

import re
from collections.abc import Mapping, Sequence

from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.grammars.lark import ANYTHING, SPACES, marker, separated
from genai_server.text.tool_formats.call_object import CALL_KEYS, lark_object, read_call_object, write_call_object
from genai_server.text.tool_formats.tool_format import Call, Calls, Tool, random_id, read_closing

PYTHON_TAG = "<|python_tag|>"
PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"


class Llama3Json:
    """See the module docstring."""

    name = "llama3_json"
    result_role = "tool"
    shown_tokens = (PYTHON_TAG, PYTHON_START, PYTHON_END)
    beginnings = "<{"
    opening = None

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from read_python_tag(text)) and not new_line:
            return False
        while (yield from read_call_object(text, calls)):
            place = text.at
            yield from text.skip_space()
            if not (yield from text.take(";")):
                text.at = place
                yield from read_closing(text, PYTHON_END)
                return True
        return False

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        return f"calls: {lark_python_tag(opaque_tokens)} {separated('object', '; ', several=parallel)}\n" + lark_object(
            tools, key="parameters"
        )

    def lark_beginning(self, names: Sequence[str]) -> str:
        # A key may contain escapes.
        return lark_line_or_tag(rf'\{{{SPACES}"(({"|".join(CALL_KEYS)})"|[^"\\]*\\)')

    def write_calls(self, calls: Sequence[Call]) -> str:
        return "; ".join(write_call_object(call, key="parameters") for call in calls)

    def new_id(self) -> str:
        return random_id()


def read_python_tag(text: Lookahead) -> Reader[bool]:
    """Read the optional tag before calls and the whitespace after it."""
    tagged = (yield from text.take(PYTHON_TAG)) or (yield from text.take(PYTHON_START))
    if tagged:
        yield from text.skip_space()
    return tagged


def lark_python_tag(opaque_tokens: Mapping[str, int]) -> str:
    """The Lark expression for the optional tag before calls."""
    return f"{marker(PYTHON_TAG, opaque_tokens)}?" if PYTHON_TAG in opaque_tokens else ""


def lark_line_or_tag(beginning: str) -> str:
    """The expression for text up to and with a tag before calls, or with a line of this beginning."""
    tags = "|".join(map(re.escape, (PYTHON_TAG, PYTHON_START)))
    return rf"({ANYTHING}({tags})|({ANYTHING}\n)?{SPACES}{beginning})"
