"""What a model writes, told as parts while it comes: reasoning, content, tool calls."""

import re
from collections.abc import Callable, Collection

from genai_server.answer_parts import Content, Part, Reasoning, ToolCallArguments
from genai_server.text.answers.lookahead import SPACE, Lookahead, Reader
from genai_server.text.answers.reasoning import ReasoningFormat, read_reasoning
from genai_server.text.tool_formats.tool_format import Calls, ToolFormat


class AnswerParser:
    """Takes the text of one answer piece by piece; how it is cut into pieces changes nothing but when a part comes.

    Content comes as soon as it cannot begin a call any more. A call is told to begin as soon as its name is complete
    and one of the request's, and its arguments as they come or, where the format does not allow that, when the call is
    complete; the arguments of a complete call are one JSON object. Whitespace before a call, and after one at the
    answer's end, is of the format and not told.

    What looks like a call but is none is content. If that shows only after its beginning was told, what was told
    stays, its arguments are not complete, and the rest is content. If the answer is cut within a call, its arguments
    end with what was told of them; if not even its name was complete, its text is content.
    """

    def __init__(
        self,
        tool_format: ToolFormat | None,
        tool_names: Collection[str],
        *,
        reasoning: ReasoningFormat | None,
        starts_in_reasoning: bool,
        new_id: Callable[[], str],
    ) -> None:
        self._text = Lookahead()
        self._parts: list[Part] = []
        self._format = tool_format if tool_names else None
        self._calls = Calls(frozenset(tool_names), new_id, self._tell)
        self._reasoning = reasoning
        self._starts_in_reasoning = starts_in_reasoning
        self._reader = self._read()

    def feed(self, text: str) -> list[Part]:
        """The parts that this piece of the text completes; neighbours of a kind are one."""
        self._text.append(text)
        return self._go_on()

    def finish(self) -> list[Part]:
        """The parts that were waiting for what might have come."""
        self._text.end()
        return self._go_on()

    def _go_on(self) -> list[Part]:
        next(self._reader, None)
        parts, self._parts = self._parts, []
        return parts

    def _tell(self, part: Part) -> None:
        """Add a part, or its text to the part before if both are of a kind."""
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

    def _tell_content(self, text: str) -> None:
        if text:
            self._tell(Content(text))

    def _tell_reasoning(self, text: str) -> None:
        if text:
            self._tell(Reasoning(text))

    def _read(self) -> Reader[None]:
        if self._reasoning is not None:
            yield from read_reasoning(
                self._text, self._reasoning, inside=self._starts_in_reasoning, tell=self._tell_reasoning
            )
        yield from self._read_with_calls(self._format) if self._format else self._read_plain()

    def _read_plain(self) -> Reader[None]:
        anything = re.compile(".*", re.DOTALL)
        while (yield from self._text.peek()):
            self._tell_content(self._text.take_here(anything))
            self._text.forget()

    def _read_with_calls(self, form: ToolFormat) -> Reader[None]:
        text, calls = self._text, self._calls
        plain = re.compile(f"[^{SPACE}{re.escape(form.beginnings)}]+")
        called, new_line = False, True
        while True:
            text.forget()
            space = yield from text.take_space()
            place = calls.told_to = text.at
            char = yield from text.peek()
            if not char:
                self._tell_content("" if called else space)
                return
            new_line = new_line or "\n" in space
            whole = char in form.beginnings and (yield from form.read_calls(text, calls, new_line=new_line))
            called = new_line = calls.told_to > place
            if whole or (calls.open and not (yield from text.peek())):
                continue
            if text.at == place:  # something else begins here
                text.at += 1
                text.take_here(plain)
            self._tell_content(("" if called else space) + text.since(calls.told_to))
            calls.open = False
