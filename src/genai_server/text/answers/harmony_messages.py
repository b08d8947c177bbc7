"""Separates what gpt-oss writes: messages of OpenAI's Harmony, each on a channel.

    <|channel|>analysis<|message|>Simple.<|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>

`analysis` is reasoning; `final` is for the user, and so is `commentary` that announces calls. Between two messages of a
kind comes an empty line. Calls are messages for functions (tool_formats/harmony.py). A message for any other recipient
stays as it was written, unless it is reasoning; so does a call that is none. Text without a header is for the user. A
header within which the answer ends is dropped: of its message there is nothing yet.
"""

import re
from collections.abc import Callable

from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.tool_formats.harmony import CHANNEL, START, read_end, read_header
from genai_server.text.tool_formats.tool_format import Calls

_PLAIN = re.compile(r"[^<]+")
_BETWEEN = "\n\n"
_ANALYSIS = "analysis"
# The beginning of a header; with less than a marker it is text.
_HALF_HEADER = re.compile(
    r"(<\|start\|>(assistant)?( to(=\S*)?)?)?(<\|channel\|>\w*( to(=\S*)?)?( ?<\|constrain\|>\w*| \w*)?)?"
)


def read_messages(
    text: Lookahead,
    calls: Calls,
    *,
    inside: bool,
    read_calls: Callable[[], Reader[bool]],
    emit: Callable[[str, bool], None],
) -> Reader[None]:
    """Go past all messages of an answer, which begins `inside` of reasoning or with a header.

    `read_calls` goes past a call and emits it to `calls`; it returns whether that was all. `emit` takes a text and
    whether it is reasoning.
    """
    messages = _Messages(text, emit)
    if inside:
        yield from messages.read_content(is_reasoning=True)
    while True:
        text.forget()
        space = yield from text.take_space()
        if not (yield from text.peek()):
            return
        place = text.at
        if (yield from text.take("to=")) or (yield from text.peek()) == "<":
            text.at = place
            if (yield from read_calls()):
                continue
            if calls.emitted_to > place:
                rest = text.since(calls.emitted_to)
                yield from messages.read_content(is_reasoning=False, written=rest, goes_on=True)
            else:
                text.at = place
                yield from messages.read_message()
        else:
            yield from messages.read_content(is_reasoning=False, written=space)


class _Messages:
    """The messages of one answer that are no calls."""

    def __init__(self, text: Lookahead, emit: Callable[[str, bool], None]) -> None:
        self._text = text
        self._emit = emit
        # Whether there was a message of reasoning, or for the user.
        self._had = {True: False, False: False}

    def read_message(self) -> Reader[None]:
        """Go past a message, or past what begins as one and is none."""
        text = self._text
        place = text.kept_from = text.at
        header = yield from read_header(text)
        text.kept_from = None
        is_reasoning = header is not None and header.channel == _ANALYSIS
        written = ""
        if header is None and text.at == place:
            text.at += 1
        if header is None or (header.recipient is not None and not is_reasoning):
            written = text.since(place)
        if header is None and _HALF_HEADER.fullmatch(written) and not (yield from text.peek()):
            return
        yield from self.read_content(is_reasoning=is_reasoning, written=written)

    def read_content(self, *, is_reasoning: bool, written: str = "", goes_on: bool = False) -> Reader[None]:
        """Go past the content of a message and its end; `written` was read of it.

        With `goes_on` a part of the message was emitted before.
        """
        text = self._text
        between = _BETWEEN if self._had[is_reasoning] and not goes_on else ""
        while True:
            if written:
                self._had[is_reasoning] = True
                self._emit(between + written, is_reasoning)
                between = ""
            text.forget()
            written = text.take_here(_PLAIN)
            if written:
                continue
            char = yield from text.peek()
            if char == "<":
                if (yield from read_end(text)):
                    return
                if (yield from self._begins_message()):
                    return
                text.at += 1
                written = char
            elif not char:
                return

    def _begins_message(self) -> Reader[bool]:
        for marker in (START, CHANNEL):
            if (yield from self._text.take(marker)):
                self._text.at -= len(marker)
                return True
        return False
