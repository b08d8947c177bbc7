"""Parses gpt-oss's answers: messages in OpenAI's Harmony format, each on a channel.

    <|channel|>analysis<|message|>Simple.<|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>

`analysis` is reasoning; `final` is for the user, and so is `commentary` that announces calls. Two messages of one kind
are separated by an empty line. Calls are messages to functions (tool_formats/harmony.py). Messages to other recipients
are kept unchanged, unless they are reasoning, and so are invalid calls. Text without a header is for the user. An
incomplete header at the end of the answer is dropped because its message is empty.
"""

import re
from collections.abc import Callable

from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.tool_formats.harmony import CHANNEL, START, read_end, read_header
from genai_server.text.tool_formats.tool_format import Calls

_PLAIN = re.compile(r"[^<]+")
_BETWEEN = "\n\n"
_ANALYSIS = "analysis"
# The beginning of a header. Less than a complete marker is text.
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
    """Read all messages of an answer, which begins inside reasoning (`inside`) or with a header.

    `read_calls` reads a call and emits it to `calls`; it returns whether the call is complete. `emit` receives a text
    and whether it is reasoning.
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
                yield from messages.read_content(is_reasoning=False, written=rest, continues=True)
            else:
                text.at = place
                yield from messages.read_message()
        else:
            yield from messages.read_content(is_reasoning=False, written=space)


class _Messages:
    """Reads the messages of an answer that are not calls."""

    def __init__(self, text: Lookahead, emit: Callable[[str, bool], None]) -> None:
        self._text = text
        self._emit = emit
        # Whether there has been a reasoning message (True) and a message for the user (False).
        self._had = {True: False, False: False}

    def read_message(self) -> Reader[None]:
        """Read a message, or text that begins like one."""
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

    def read_content(self, *, is_reasoning: bool, written: str = "", continues: bool = False) -> Reader[None]:
        """Read a message's content and its end; `written` is the content read so far.

        With `continues`, part of the message has been emitted.
        """
        text = self._text
        between = _BETWEEN if self._had[is_reasoning] and not continues else ""
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
