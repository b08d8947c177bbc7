"""Tool calls as Kimi K2 writes them, between tokens of their own, each with its id.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Oslo"}
    <|tool_call_end|><|tool_calls_section_end|>

All of it is one line. The id names the function and counts the conversation's calls; the chat template shows it to the
model again, with the call and its result. So the id that the model wrote is the call's. (Chat template and "Tool
calling guide" of Kimi-K2.)
"""

import re
from collections.abc import Mapping, Sequence

from genai_server.text.answers.json_text import read_value
from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.grammars.lark import ANYTHING, any_of, fits, quoted, spelled
from genai_server.text.tool_formats.call_object import pass_on, read_section
from genai_server.text.tool_formats.tool_format import Call, Calls, Tool, random_id, read_closing, write_json

_OPENING, _CLOSING = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_ID = re.compile(r"[^\s<{]*")
_NAMED = re.compile(r"(?:functions\.)?(?P<name>.+?)(?::\d+)?")
_COUNTED = re.compile(r"functions\..+:\d+")


class Kimi:
    """See the module docstring."""

    name = "kimi"
    result_role = "tool"
    shown_tokens = (_OPENING, _CLOSING, _CALL, _ARGUMENTS, _END)
    beginnings = "<"
    opening = _OPENING

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take(_OPENING)):
            return False
        return (yield from read_section(text, lambda: _read_call(text, calls), begin=_CALL, closing=_CLOSING))

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        begin, between, end = (spelled(text, opaque_tokens) for text in (_CALL, _ARGUMENTS, _END))
        called = (f"{quoted(f'functions.{tool.name}:')} /[0-9]+/ {between} {fits(tool.schema)}" for tool in tools)
        several = "call+" if parallel else "call"
        return f"calls: opening {several} {spelled(_CLOSING, opaque_tokens)}\ncall: {begin} {any_of(called)} {end}\n"

    def lark_beginning(self, names: Sequence[str]) -> str:
        return f"{ANYTHING}{re.escape(_OPENING)}"

    def write_calls(self, calls: Sequence[Call]) -> str:
        written = (
            f"{_CALL}functions.{call.name}:{place}{_ARGUMENTS}{write_json(call.arguments)}{_END}"
            for place, call in enumerate(calls)
        )
        return f"{_OPENING}{''.join(written)}{_CLOSING}"

    def new_id(self) -> str:
        return random_id()


def _read_call(text: Lookahead, calls: Calls) -> Reader[bool]:
    yield from text.skip_space()
    if not (yield from text.take(_CALL)):
        return False
    yield from text.skip_space()
    id = yield from text.take_all(_ID)
    named = _NAMED.fullmatch(id)
    if named is None or named["name"] not in calls.names:
        return False
    yield from text.skip_space()
    if not (yield from text.take(_ARGUMENTS)):
        return False
    calls.start(named["name"], text.at, id=id if _COUNTED.fullmatch(id) else None)
    if (yield from text.skip_space()) != "{" or not (yield from pass_on(text, read_value(text), calls)):
        return False
    calls.end(text.at)
    yield from read_closing(text, _END)
    return True
