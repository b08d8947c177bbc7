"""Tool calls as DeepSeek's models write them, between tokens of their own.

V3.1 and later writes the name and JSON; V3 and R1 a type before them, and the JSON in a fence.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Oslo"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Both are read; the format says which is written. (Model cards and chat templates of DeepSeek-V3-0324, R1 and V3.1.)
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genai_server.text.answers.json_text import read_value
from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.grammars.lark import ANYTHING, any_of, fits, separated, spelled
from genai_server.text.tool_formats.call_object import pass_on, read_section
from genai_server.text.tool_formats.tool_format import Call, Calls, Tool, random_id, read_closing, write_json

_OPENING, _CLOSING = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_TYPE, _FENCE = "function", "```"
_NAME = re.compile(r"[^\s<`{]*")


@dataclass(frozen=True)
class DeepSeek:
    """See the module docstring."""

    name: str
    # Whether calls have a type before the name, and a fence around the JSON.
    is_fenced: bool

    @property
    def result_role(self) -> str:
        return "tool"

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        return (_OPENING, _CLOSING, _CALL, _SEPARATOR, _END)

    @property
    def beginnings(self) -> str:
        return "<"

    @property
    def opening(self) -> str:
        return _OPENING

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take(_OPENING)):
            return False
        return (yield from read_section(text, lambda: _read_call(text, calls), begin=_CALL, closing=_CLOSING))

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        called = []
        for tool in tools:
            head, tail = (spelled(text, opaque_tokens) for text in self._around(tool.name))
            called.append(f"{head} {fits(tool.schema)} {tail}")
        several = separated("call", "\n", several=parallel) if self.is_fenced else "call+" if parallel else "call"
        return f"calls: opening {several} {spelled(_CLOSING, opaque_tokens)}\ncall: {any_of(called)}\n"

    def lark_beginning(self, names: Sequence[str]) -> str:
        return f"{ANYTHING}{re.escape(_OPENING)}"

    def write_calls(self, calls: Sequence[Call]) -> str:
        written = []
        for call in calls:
            head, tail = self._around(call.name)
            written.append(f"{head}{write_json(call.arguments)}{tail}")
        between = "\n" if self.is_fenced else ""
        return f"{_OPENING}{between.join(written)}{_CLOSING}"

    def _around(self, name: str) -> tuple[str, str]:
        """The text before and after the arguments of a call."""
        if self.is_fenced:
            return f"{_CALL}{_TYPE}{_SEPARATOR}{name}\n{_FENCE}json\n", f"\n{_FENCE}{_END}"
        return f"{_CALL}{name}{_SEPARATOR}", _END

    def new_id(self) -> str:
        return random_id()


def _read_call(text: Lookahead, calls: Calls) -> Reader[bool]:
    yield from text.skip_space()
    if not (yield from text.take(_CALL)):
        return False
    name = yield from text.take_all(_NAME)
    if not (yield from text.take(_SEPARATOR)):
        return False
    if (yield from text.skip_space()) not in ("{", ""):
        name = yield from text.take_all(_NAME)
    if name not in calls.names or not (yield from text.skip_space()):
        return False
    calls.start(name, text.at)
    if fenced := (yield from text.take(_FENCE)):
        yield from text.take("json")
    if (yield from text.skip_space()) != "{" or not (yield from pass_on(text, read_value(text), calls)):
        return False
    calls.end(text.at)
    if fenced:
        yield from read_closing(text, _FENCE)
    yield from read_closing(text, _END)
    return True


DEEPSEEK_V3, DEEPSEEK_V31 = DeepSeek("deepseek_v3", is_fenced=True), DeepSeek("deepseek_v31", is_fenced=False)
