"""Tool calls as gpt-oss writes them: messages of OpenAI's Harmony with a function as their recipient.

    <|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>

The recipient may stand before the channel, as the chat template has it, and the type of the content may be missing.
The model stops after a call; where its end token does not stop it, others follow, each after `<|start|>assistant`.
Everything else that it writes are messages, too: text/answers/harmony_messages.py reads them. (OpenAI's "Harmony
response format" and the chat template of gpt-oss.)
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.grammars.lark import ANYTHING, SPACES, any_of, fits, quoted, spelled, text_up_to
from genai_server.text.tool_formats.call_object import read_arguments
from genai_server.text.tool_formats.tool_format import Call, Calls, Tool, ToolFormat, write_json

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN)
# Before a message for the user.
FINAL = f"{CHANNEL}final{MESSAGE}"
NEXT_MESSAGE = f"{END}{START}assistant"
_NAMESPACE = "functions."
_OPENING = f"{CHANNEL}commentary to={_NAMESPACE}"
_WORDS = re.compile(r"[^<\n]*")
_RECIPIENT = re.compile(r"(?:^|\s)to=(\S+)")


class Header(NamedTuple):
    """The header of a message."""

    # None without a channel.
    channel: str | None
    # The message's recipient; None for the user.
    recipient: str | None

    @property
    def function(self) -> str | None:
        """The name of the called function."""
        if self.recipient is None or not self.recipient.startswith(_NAMESPACE):
            return None
        return self.recipient.removeprefix(_NAMESPACE)


class Harmony(ToolFormat):
    """See the module docstring."""

    name = "harmony"
    shown_tokens = MARKERS
    opening = _OPENING

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        header = yield from read_header(text)
        if header is None or header.function not in calls.names or (yield from text.skip_space()) not in ("{", ""):
            return False
        calls.start(str(header.function), text.at)
        if not (yield from read_arguments(text, calls)):
            return False
        yield from text.take_space()
        yield from read_end(text)
        return True

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        head = spelled(f" {CONSTRAIN}json{MESSAGE}", opaque_tokens)
        called = any_of(f"{quoted(tool.name)} {head} {fits(tool.schema)}" for tool in tools)
        more = f"({spelled(f'{CALL}{START}assistant', opaque_tokens)} call)*" if parallel else ""
        return f"calls: call {more} {spelled(CALL, opaque_tokens)}?\ncall: opening {called}\n"

    def lark_beginning(self, names: Sequence[str]) -> str:
        marks = "|".join(map(re.escape, (START, CHANNEL)))
        return rf"({ANYTHING}({marks})|{SPACES}to=)"

    def lark_answer(self, calls: str, opaque_tokens: Mapping[str, int]) -> str:
        """Rules with `start` on top: a message for the user or a call after none or one that announces it.

        `calls` are the rules of `lark`.
        """
        announcement = spelled(f"{CHANNEL}commentary{MESSAGE}", opaque_tokens)
        rules = [
            "start: announced? (calls | final)",
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


def read_header(text: Lookahead) -> Reader[Header | None]:
    """Read a message's header and the marker before its content; None if the header is invalid."""
    words, channel, in_channel = "", "", False
    while True:
        found = yield from text.take_all(_WORDS)
        if in_channel:
            channel, in_channel = found, False
        words += f" {found} "
        if (yield from text.take(MESSAGE)):
            recipient = _RECIPIENT.search(words)
            name = channel.split(maxsplit=1)[:1]
            return Header(name[0] if name else None, recipient[1] if recipient else None)
        if (yield from text.take(CHANNEL)):
            in_channel = True
        elif not (yield from text.take(START)) and not (yield from text.take(CONSTRAIN)):
            return None


def read_end(text: Lookahead) -> Reader[bool]:
    """Read the marker at the end of a message, or its beginning at the end of the text."""
    for marker in (END, CALL, RETURN):
        if (yield from text.take(marker)):
            return True
    return False
