"""Tool call formats of Llama 3.1 to 4: JSON (`Llama3Json`) and Python (`Pythonic`).

Calls begin a line, or stand after `<|python_tag|>` or between `<|python_start|>` and `<|python_end|>`.
"""

import re
from collections.abc import Mapping, Sequence

from genai_server.text.answers.parsing import Lookahead, Reader
from genai_server.text.grammars.lark import ANYTHING, SPACES, marker, quoted, separated
from genai_server.text.tool_formats.json_calls import CALL_KEYS, lark_object, read_call_object, write_call_object
from genai_server.text.tool_formats.python_calls import lark_python_calls, read_call, write_call
from genai_server.text.tool_formats.tool_format import Call, Calls, Tool, ToolFormat, read_closing, read_list

_PYTHON_TAG = "<|python_tag|>"
_PYTHON_START, _PYTHON_END = "<|python_start|>", "<|python_end|>"


class _Llama(ToolFormat):
    """Base class of Llama's tool call formats: calls stand without a marker, or after one of Llama's Python tags."""

    opening = None
    shown_tokens = (_PYTHON_TAG, _PYTHON_START, _PYTHON_END)


class Llama3Json(_Llama):
    """The tool call format of Llama 3.1 and later: JSON objects with the members "name" and "parameters", separated by
    `;`.

        <|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}

    Sources: Meta's prompt formats of Llama 3.1, "JSON based tool calling", and the chat templates of Llama 3.2 and 4.
    """

    name = "llama3_json"
    beginnings = "<{"

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from _read_python_tag(text)) and not new_line:
            return False
        while (yield from read_call_object(text, calls)):
            start = text.at
            yield from text.skip_space()
            if not (yield from text.take(";")):
                text.at = start
                yield from read_closing(text, _PYTHON_END)
                return True
        return False

    def lark_calls(self, *, parallel: bool, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
        return f"calls{suffix}: {_lark_python_tag(opaque_tokens)} {separated('called', '; ', several=parallel)}"

    def lark_called(self, tools: Sequence[Tool], opaque_tokens: Mapping[str, int]) -> str:
        return lark_object(tools, key="parameters")

    def lark_beginning(self, names: Sequence[str], *, before: str = ANYTHING) -> str:
        # A key may contain escapes.
        return _lark_line_or_tag(rf'\{{{SPACES}"(({"|".join(CALL_KEYS)})"|[^"\\]*\\)')

    def write_calls(self, calls: Sequence[Call]) -> str:
        return "; ".join(write_call_object(call, key="parameters") for call in calls)


class Pythonic(_Llama):
    """The tool call format of Llama 3.2 and 4: a Python list of function calls, whose keyword arguments are literals.

        [get_weather(city="Oslo"), add(a=1, b=2)]

    Each argument is emitted when it is complete. Sources: Meta's prompt formats of Llama 3.2 and 4, "Zero shot function
    calling".
    """

    name = "pythonic"
    beginnings = "<["

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from _read_python_tag(text)) and not new_line:
            return False
        if not (yield from read_list(text, calls, read_call)):
            return False
        yield from read_closing(text, _PYTHON_END)
        return True

    def lark_calls(self, *, parallel: bool, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
        more = f"({quoted(', ')} called)*" if parallel else ""
        return f"calls{suffix}: {_lark_python_tag(opaque_tokens)} first_called {more} {quoted(']')}"

    def lark_called(self, tools: Sequence[Tool], opaque_tokens: Mapping[str, int]) -> str:
        return lark_python_calls(tools, before_first="[")

    def lark_beginning(self, names: Sequence[str], *, before: str = ANYTHING) -> str:
        return _lark_line_or_tag(rf"\[{SPACES}({'|'.join(map(re.escape, names))})\(")

    def write_calls(self, calls: Sequence[Call]) -> str:
        return f"[{', '.join(map(write_call, calls))}]"


def _read_python_tag(text: Lookahead) -> Reader[bool]:
    """Consume a Python tag, such as `<|python_tag|>`, which may precede calls, and the whitespace after it.

    Result of this generator, which yields while it needs more text: whether there was a tag.
    """
    if not (yield from text.take_any(_PYTHON_TAG, _PYTHON_START)):
        return False
    yield from text.skip_space()
    return True


def _lark_python_tag(opaque_tokens: Mapping[str, int]) -> str:
    """Return the Lark expression for the optional tag `<|python_tag|>` before calls; "" if the tokenizer does not have
    it.

    `opaque_tokens` maps the texts of special tokens, which no literal matches, to token ids.
    """
    return f"{marker(_PYTHON_TAG, opaque_tokens)}?" if _PYTHON_TAG in opaque_tokens else ""


def _lark_line_or_tag(beginning: str) -> str:
    """Return a regular expression for all text up to the beginning of a tool call.

    The text ends with one of Llama's Python tags, or with a match of the expression `beginning` at the start of a line.
    """
    tags = "|".join(map(re.escape, (_PYTHON_TAG, _PYTHON_START)))
    return rf"({ANYTHING}({tags})|({ANYTHING}\n)?{SPACES}{beginning})"
