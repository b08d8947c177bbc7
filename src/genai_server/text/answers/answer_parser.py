"""Separates reasoning, content and tool calls in an answer while it is generated."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from genai_server.answer_parts import Content, Part, Reasoning, ToolCallArguments
from genai_server.text.answers.answer_text import PlainParser
from genai_server.text.answers.lookahead import SPACE, Lookahead, Reader
from genai_server.text.answers.reasoning import HARMONY, ReasoningFormat, ReasoningReader
from genai_server.text.tool_formats.harmony import read_messages
from genai_server.text.tool_formats.tool_format import Calls, ToolFormat

_ANYTHING = re.compile(".*", re.DOTALL)


class AnswerParser(PlainParser):
    """Splits the text of an answer into reasoning, content and tool calls while the answer is generated.

    `tools` maps the names of callable functions to the JSON schemas of their arguments. How the text is cut into pieces
    does not change the result.

    Content is returned as soon as it can no longer be the beginning of a call. A call begins with the complete name of
    one of the request's functions and the beginning of the arguments. Arguments are returned incrementally or, if the
    tool format requires it, one complete argument at a time. Whitespace before a call, and after a call at the end of
    the answer, belongs to the format and is dropped.

    If a call that has begun continues as other text, or the answer ends inside the call, the call ends incomplete, and
    the text that follows is content. With `only_complete_calls`, calls are returned when they are complete, and all
    other text is content.
    """

    def __init__(
        self,
        tool_format: ToolFormat | None,
        tools: Mapping[str, Mapping[str, Any] | None],
        *,
        reasoning: ReasoningFormat | None,
        starts_in_reasoning: bool,
        new_id: Callable[[], str],
        only_complete_calls: bool = False,
    ) -> None:
        self._text = Lookahead()
        self._parts: list[Part] = []
        self._format = tool_format if tools else None
        self._new_id = new_id
        self._calls = Calls(tools, new_id, self._emit, only_complete=only_complete_calls)
        self._reasoning = reasoning
        self._starts_in_reasoning = starts_in_reasoning
        self._thought: ReasoningReader | None = None
        self._last: type[Part] = Content  # of the parts so far
        self._reader = self._read()
        # Whether everything before has been returned and the rest is content.
        self._is_plain = False

    @property
    def is_within(self) -> bool:
        thinks = self._thought is not None and self._thought.is_open
        return thinks or self._calls.is_open or (self._reasoning is HARMONY and self._last is Reasoning)

    def feed(self, text: str) -> list[Part]:
        if self._is_plain:
            return super().feed(text)
        self._text.append(text)
        return self._resume()

    def finish(self) -> list[Part]:
        self._text.end()
        return self._resume()

    def _resume(self) -> list[Part]:
        next(self._reader, None)
        parts, self._parts = self._parts, []
        return parts

    def _emit_text(self, kind: type[Content] | type[Reasoning], text: str) -> None:
        if text:
            self._emit(kind(text))

    def _emit(self, part: Part) -> None:
        """Append a part to the parts that `feed` returns next, or join its text with the last of these if both are of
        one type.
        """
        self._last = type(part)
        last = self._parts[-1] if self._parts else None
        match last, part:
            case (Content(before), Content(text)):
                self._parts[-1] = Content(before + text)
            case (Reasoning(before), Reasoning(text)):
                self._parts[-1] = Reasoning(before + text)
            case (ToolCallArguments(index, before), ToolCallArguments(same, text)) if index == same:
                self._parts[-1] = ToolCallArguments(index, before + text)
            case _:
                self._parts.append(part)

    def _read(self) -> Reader[None]:
        if self._reasoning is HARMONY:
            yield from read_messages(
                self._text,
                self._calls,
                inside=self._starts_in_reasoning,
                read_calls=self._read_calls_here,
                emit=lambda text, is_reasoning: self._emit_text(Reasoning if is_reasoning else Content, text),
            )
            return
        if self._reasoning is not None:
            new_calls = partial(Calls, self._calls.parameters, self._new_id, only_complete=True)
            self._thought = ReasoningReader(self._text, self._reasoning, self._emit, self._format, new_calls)
            yield from self._thought.read(inside=self._starts_in_reasoning)
        yield from self._read_with_calls(self._format) if self._format else self._read_plain()

    def _read_calls_here(self, *, new_line: bool = True) -> Reader[bool]:
        """Read tool calls at the current position, which is at the beginning of a line if `new_line`, and emit them.

        Returns whether all text read was tool calls, of which the end of the answer may have cut off the last one. If
        not, the text that was read but not emitted belongs to no tool call.
        """
        text, calls = self._text, self._calls
        text.kept_from = calls.emitted_to = text.at
        text.met_end = False
        are_calls = self._format is not None and (yield from self._format.read_calls(text, calls, new_line=new_line))
        if calls.is_open and calls.abandon() and text.met_end:
            are_calls = True
            text.take_here(_ANYTHING)  # the answer has ended within the call
        text.kept_from = None
        return are_calls

    def _read_plain(self) -> Reader[None]:
        self._emit_text(Content, self._text.take_here(_ANYTHING))
        self._is_plain = True
        yield

    def _read_with_calls(self, form: ToolFormat) -> Reader[None]:
        text, calls = self._text, self._calls
        plain = re.compile(f"[^{SPACE}{re.escape(form.beginnings)}]+")
        called, new_line = False, True
        while True:
            text.forget()
            space = yield from text.take_space()
            start = calls.emitted_to = text.at
            char = yield from text.peek()
            if not char:
                self._emit_text(Content, "" if called else space)
                return
            new_line = new_line or "\n" in space
            are_calls = char in form.beginnings and (yield from self._read_calls_here(new_line=new_line))
            called = new_line = calls.emitted_to > start
            if are_calls:
                continue
            if text.at == start:  # no call begins here
                text.at += 1
                text.take_here(plain)
            self._emit_text(Content, ("" if called else space) + text.since(calls.emitted_to))
