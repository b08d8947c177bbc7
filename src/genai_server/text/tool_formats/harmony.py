"""Answers of gpt-oss, which are messages in OpenAI's Harmony format, each on a channel: the tool call format
(`Harmony`), and a reader of all messages of an answer (`read_messages`). Tool calls are messages to functions.

    <|channel|>analysis<|message|>Simple.<|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|return|>

    <|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>

Messages on `analysis` are reasoning. Messages on `final` are for the user, and so are those on `commentary` that
announce calls. Two messages of one kind are separated by an empty line. Messages to other recipients (unless they are
reasoning) and invalid calls are emitted as unchanged text. Text without a header is for the user. An incomplete header
at the end of the answer is dropped because its message is empty.

The recipient may stand before the channel, as in the chat template, and the type of the content may be missing. The
model stops after a call. If the end token does not stop it, more calls follow, each after `<|start|>assistant`.
Sources: OpenAI's "Harmony response format" and the chat template of gpt-oss.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from genai_server.text.answers.parsing import Lookahead, Reader
from genai_server.text.grammars.lark import any_of, fits, quoted, spelled, text_up_to
from genai_server.text.tool_formats.json_calls import read_arguments
from genai_server.text.tool_formats.tool_format import Call, Calls, Tool, ToolFormat, write_json

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ENDS = (END, CALL, RETURN)
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
# Before a message for the user.
FINAL = f"{CHANNEL}final{MESSAGE}"
NEXT_MESSAGE = f"{END}{START}assistant"
_NAMESPACE = "functions."
_OPENING = f"{CHANNEL}commentary to={_NAMESPACE}"
_WORDS = re.compile(r"[^<\n]*")
_RECIPIENT = re.compile(r"(?:^|\s)to=(\S+)")
_PLAIN = re.compile(r"[^<]+")
_BETWEEN = "\n\n"
_ANALYSIS = "analysis"
# The beginning of a header. Less than a complete marker is text.
_HALF_HEADER = re.compile(
    r"(<\|start\|>(assistant)?( to(=\S*)?)?)?(<\|channel\|>\w*( to(=\S*)?)?( ?<\|constrain\|>\w*| \w*)?)?"
)


class Header(NamedTuple):
    """The header of one message of an answer in the Harmony format.

    `channel` is the message's channel, such as "final", or None; `recipient` is to whom it goes, None for the user.
    """

    # None without a channel.
    channel: str | None
    # The message's recipient; None for the user.
    recipient: str | None

    @property
    def function(self) -> str | None:
        """The name of the function that the message calls; None if the message is not a tool call."""
        if self.recipient is None or not self.recipient.startswith(_NAMESPACE):
            return None
        return self.recipient.removeprefix(_NAMESPACE)


class Harmony(ToolFormat):
    """The tool call format of gpt-oss: a message on the channel `commentary` to the recipient `functions.NAME`.

        <|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>

    Text for the user and reasoning are messages, too. The function `read_messages` reads these.
    """

    name = "harmony"
    shown_tokens = MARKERS
    opening = _OPENING

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        header = yield from _read_header(text)
        if header is None or header.function not in calls.names or (yield from text.skip_space()) not in ("{", ""):
            return False
        calls.start(str(header.function))
        if not (yield from read_arguments(text, calls)):
            return False
        yield from text.take_space()
        yield from text.take_any(*ENDS)
        return True

    def lark_calls(self, *, parallel: bool, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
        call = f"opening{suffix} called"
        more = f"({spelled(f'{CALL}{START}assistant', opaque_tokens)} {call})*" if parallel else ""
        return f"calls{suffix}: {call} {more} {spelled(CALL, opaque_tokens)}?"

    def lark_called(self, tools: Sequence[Tool], opaque_tokens: Mapping[str, int]) -> str:
        head = spelled(f" {CONSTRAIN}json{MESSAGE}", opaque_tokens)
        return f"called: {any_of(f'{quoted(tool.name)} {head} {fits(tool.schema)}' for tool in tools)}"

    def lark_answer(self, calls: str, opaque_tokens: Mapping[str, int]) -> str:
        """Return Lark rules of a grammar, whose first rule `answer` matches an answer without reasoning.

        This is a message for the user, or tool calls, before which another message may announce them. `calls` are the
        rules for tool calls that the method `lark` returns. `opaque_tokens` maps the texts of special tokens, which no
        literal matches, to token ids.
        """
        announcement = spelled(f"{CHANNEL}commentary{MESSAGE}", opaque_tokens)
        rules = [
            "answer: announced? (calls | final)",
            f"announced: {announcement} message",
            text_up_to("message", NEXT_MESSAGE, opaque_tokens, without=MARKERS),
            f"final: {spelled(FINAL, opaque_tokens)} MESSAGE",
            f"opening: {spelled(_OPENING, opaque_tokens)}",
            calls,
        ]
        return "\n".join(rules)

    def write_calls(self, calls: Sequence[Call]) -> str:
        written = (
            f"{_OPENING}{call.name} {CONSTRAIN}json{MESSAGE}{write_json(call.arguments)}{CALL}" for call in calls
        )
        return f"{START}assistant".join(written)


def _read_header(text: Lookahead) -> Reader[Header | None]:
    """Read the header of a message and the marker before the message's content.

    Result of this generator, which yields while it needs more text: the header; None if it is invalid.
    """
    words, channel, in_channel = "", "", False
    while True:
        words_read = yield from text.take_all(_WORDS)
        if in_channel:
            channel = words_read
        words += f" {words_read} "
        marker = yield from text.take_any(MESSAGE, CHANNEL, START, CONSTRAIN)
        if marker == MESSAGE:
            recipient = _RECIPIENT.search(words)
            name = channel.split(maxsplit=1)[:1]
            return Header(name[0] if name else None, recipient[1] if recipient else None)
        if not marker:
            return None
        in_channel = marker == CHANNEL


def read_messages(
    text: Lookahead,
    calls: Calls,
    *,
    inside: bool,
    read_calls: Callable[[], Reader[bool]],
    emit: Callable[[str, bool], None],
) -> Reader[None]:
    """Read all messages of an answer in the Harmony format, and emit their content.

    `inside` says that the answer begins inside reasoning; otherwise it begins with a header. `read_calls` is a reader
    that reads a tool call and emits it to `calls`; its result says whether the call is complete. `emit` receives the
    text of other messages in pieces, and whether it is reasoning. This generator yields whenever it needs more text.
    """
    messages = _Messages(text, emit)
    if inside:
        yield from messages.read_content(is_reasoning=True)
    while True:
        text.forget()
        space = yield from text.take_space()
        if not (yield from text.peek()):
            return
        start = text.at
        if (yield from text.take("to=")) or (yield from text.peek()) == "<":
            text.at = start
            if (yield from read_calls()):
                continue
            if calls.emitted_to > start:
                remainder = text.since(calls.emitted_to)
                yield from messages.read_content(is_reasoning=False, written=remainder, continues=True)
            else:
                text.at = start
                yield from messages.read_message()
        else:
            yield from messages.read_content(is_reasoning=False, written=space)


class _Messages:
    """Reads the messages of one answer in the Harmony format that are not tool calls, and emits their text.

    `emit` receives the text in pieces, and whether it is reasoning. `read_messages` creates the object.
    """

    def __init__(self, text: Lookahead, emit: Callable[[str, bool], None]) -> None:
        self._text = text
        self._emit = emit
        # Whether there has been a reasoning message (True) and a message for the user (False).
        self._had = {True: False, False: False}

    def read_message(self) -> Reader[None]:
        """Read one message with its header and emit its content. Text that only begins like a header is emitted as
        content.

        This generator yields whenever it needs more text.
        """
        text = self._text
        start = text.kept_from = text.at
        header = yield from _read_header(text)
        text.kept_from = None
        is_reasoning = header is not None and header.channel == _ANALYSIS
        written = ""
        if header is None and text.at == start:
            text.at += 1
        if header is None or (header.recipient is not None and not is_reasoning):
            written = text.since(start)
        if header is None and _HALF_HEADER.fullmatch(written) and not (yield from text.peek()):
            return
        yield from self.read_content(is_reasoning=is_reasoning, written=written)

    def read_content(self, *, is_reasoning: bool, written: str = "", continues: bool = False) -> Reader[None]:
        """Read the content of a message up to its end marker, and emit it: as reasoning if `is_reasoning`, else as text
        for the user.

        `written` is the part of the content that has been read already. `continues` says that a part of the message has
        been emitted already, so that no empty line separates it from the message before. This generator yields whenever
        it needs more text.
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
                if (yield from text.take_any(*ENDS)):
                    return
                if marker := (yield from text.take_any(START, CHANNEL)):  # of the next message
                    text.at -= len(marker)
                    return
                text.at += 1
                written = char
            elif not char:
                return
