"""Tool call formats with a section of the answer for calls, between special tokens: those of DeepSeek's models
(`DeepSeek`) and Kimi K2 (`Kimi`).
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genai_server.text.answers.parsing import Lookahead, Reader
from genai_server.text.grammars.lark import any_of, fits, quoted, separated, spelled
from genai_server.text.tool_formats.json_calls import read_arguments
from genai_server.text.tool_formats.tool_format import Call, Calls, Tool, ToolFormat, read_closing, write_json

_FENCE = "```"
_DEEPSEEK_SEPARATOR, _TYPE = "<｜tool▁sep｜>", "function"
_DEEPSEEK_NAME = re.compile(r"[^\s<`{]*")
_KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"
_KIMI_ID = re.compile(r"[^\s<{]*")
_KIMI_NAMED = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::\d+)?")
_KIMI_COUNTED = re.compile(r"functions\..+:\d+")


class Sections(ToolFormat):
    """Base class of the tool call formats in which all calls stand in one section of the answer.

    Subclasses set the markers around the section, `opening` and `closing`, and around each call, `call_begin` and
    `call_end`. A call has a head with the function's name, and then arguments in JSON.
    """

    opening: str
    closing: str
    # Around each call.
    call_begin: str
    call_end: str

    @property
    def between(self) -> str:
        """The text that the model writes between two calls of a section."""
        return ""

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take(self.opening)):
            return False
        while (yield from self._read_call(text, calls)):
            start = text.at
            if not (yield from text.skip_space()) or (yield from text.take_last(self.closing)):
                return True
            if not (yield from text.take(self.call_begin)):
                text.at = start
                return True
            text.at -= len(self.call_begin)
        return False

    def _read_call(self, text: Lookahead, calls: Calls) -> Reader[bool]:
        yield from text.skip_space()
        if not (yield from text.take(self.call_begin)):
            return False
        fence = yield from self.read_head(text, calls)
        if fence is None or not (yield from read_arguments(text, calls)):
            return False
        if fence:
            yield from read_closing(text, fence)
        yield from read_closing(text, self.call_end)
        return True

    @abstractmethod
    def read_head(self, text: Lookahead, calls: Calls) -> Reader[str | None]:
        """Read the head of a call, which is the text before its arguments, and start the call in `calls`.

        Result of this generator, which yields while it needs more text: the marker that closes the code fence around
        the arguments, "" if there is no fence, and None if the text is not a call.
        """

    @abstractmethod
    def head(self, name: str, number: int) -> str:
        """Return the text of a call to the function `name` before its arguments, as the model writes it.

        `number` is the index of the call among the answer's calls.
        """

    @property
    def tail(self) -> str:
        """The text of a call after its arguments, as the model writes it."""
        return self.call_end

    def lark_head(self, name: str, opaque_tokens: Mapping[str, int]) -> str:
        """Return the Lark expression for the text of a call to the function `name` before its arguments.

        `opaque_tokens` maps the texts of special tokens, which no literal matches, to token ids.
        """
        return spelled(self.head(name, 0), opaque_tokens)

    def lark_calls(self, *, parallel: bool, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
        calls = separated("called", self.between, several=parallel)
        return f"calls{suffix}: opening{suffix} {calls} {spelled(self.closing, opaque_tokens)}"

    def lark_called(self, tools: Sequence[Tool], opaque_tokens: Mapping[str, int]) -> str:
        tail = spelled(self.tail, opaque_tokens)
        called = any_of(f"{self.lark_head(tool.name, opaque_tokens)} {fits(tool.schema)} {tail}" for tool in tools)
        return f"called: {called}"

    def write_calls(self, calls: Sequence[Call]) -> str:
        written = (
            f"{self.head(call.name, number)}{write_json(call.arguments)}{self.tail}"
            for number, call in enumerate(calls)
        )
        return f"{self.opening}{self.between.join(written)}{self.closing}"


@dataclass(frozen=True)
class DeepSeek(Sections):
    """The tool call format of DeepSeek's models, in a section between special tokens.

    Models from V3.1 on write the function's name and JSON; V3 and R1 write a type, the name, and JSON in a code fence.

        <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

        <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
        ```json
        {"city": "Oslo"}
        ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    Both forms are read; `is_fenced` says that the form with the fence is written. Sources: model cards and chat
    templates of DeepSeek-V3-0324, R1 and V3.1.
    """

    name: str
    # Whether calls have a type before the name, and a fence around the JSON.
    is_fenced: bool

    opening, closing = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    call_begin, call_end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    shown_tokens = (opening, closing, call_begin, _DEEPSEEK_SEPARATOR, call_end)

    @property
    def between(self) -> str:
        return "\n" if self.is_fenced else ""

    def read_head(self, text: Lookahead, calls: Calls) -> Reader[str | None]:
        name = yield from text.take_all(_DEEPSEEK_NAME)
        if not (yield from text.take(_DEEPSEEK_SEPARATOR)):
            return None
        if (yield from text.skip_space()) not in ("{", ""):
            name = yield from text.take_all(_DEEPSEEK_NAME)
        if name not in calls.names or not (yield from text.skip_space()):
            return None
        calls.start(name)
        if not (yield from text.take(_FENCE)):
            return ""
        yield from text.take("json")
        return _FENCE

    def head(self, name: str, number: int) -> str:
        if self.is_fenced:
            return f"{self.call_begin}{_TYPE}{_DEEPSEEK_SEPARATOR}{name}\n{_FENCE}json\n"
        return f"{self.call_begin}{name}{_DEEPSEEK_SEPARATOR}"

    @property
    def tail(self) -> str:
        return f"\n{_FENCE}{self.call_end}" if self.is_fenced else self.call_end


class Kimi(Sections):
    """The tool call format of Kimi K2, in a section between special tokens. Each call has an id that the model writes.

        <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city":
        "Oslo"}<|tool_call_end|><|tool_calls_section_end|>

    The whole section is one line. The id names the function and counts the calls of the conversation. The chat template
    shows the id to the model again, with the call and with its result, so clients receive the id that the model wrote.
    Sources: chat template and "Tool calling guide" of Kimi-K2.
    """

    name = "kimi"
    opening, closing = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    call_begin, call_end = "<|tool_call_begin|>", "<|tool_call_end|>"
    shown_tokens = (opening, closing, call_begin, _KIMI_ARGUMENTS, call_end)

    def read_head(self, text: Lookahead, calls: Calls) -> Reader[str | None]:
        yield from text.skip_space()
        id = yield from text.take_all(_KIMI_ID)
        named = _KIMI_NAMED.fullmatch(id)
        if named is None or named["name"] not in calls.names:
            return None
        yield from text.skip_space()
        if not (yield from text.take(_KIMI_ARGUMENTS)):
            return None
        calls.start(named["name"], id=id if _KIMI_COUNTED.fullmatch(id) else None)
        return ""

    def head(self, name: str, number: int) -> str:
        return f"{self.call_begin}functions.{name}:{number}{_KIMI_ARGUMENTS}"

    def lark_head(self, name: str, opaque_tokens: Mapping[str, int]) -> str:
        start, end = (spelled(text, opaque_tokens) for text in (self.call_begin, _KIMI_ARGUMENTS))
        return f"{start} {quoted(f'functions.{name}:')} /[0-9]+/ {end}"
