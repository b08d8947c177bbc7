"""Tool calls as Mistral's models write them, after the token `[TOOL_CALLS]`.

It is an array of objects or, with tokenizers from version 11 on, one name and its arguments and then, for the next
call, the token again. Version 11 has `[CALL_ID]` and an id before `[ARGS]`.

    [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]
    [TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}

(mistral-common's chat templates, versions 3 to 15.)
"""

import re
from collections.abc import Mapping, Sequence

from genai_server.text.answers.json_text import read_value
from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.grammars.lark import ANYTHING, any_of, fits, marker, quoted, separated
from genai_server.text.tool_formats.call_object import lark_object, pass_on, read_call_list, write_call_object
from genai_server.text.tool_formats.tool_format import Call, Calls, Tool, random_id

_OPENING, _CALL_ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[^\s\[{]*")
_ID = re.compile(r"[0-9A-Za-z]*")
# The chat templates up to version 11 refuse ids of any other length.
_ID_LENGTH = 9


class Mistral:
    """See the module docstring."""

    name = "mistral"
    result_role = "tool"
    shown_tokens = (_OPENING, _CALL_ID, _ARGS)
    beginnings = "["
    opening = _OPENING

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take(_OPENING)):
            return False
        char = yield from text.skip_space()
        if char and char in "[{":
            return (yield from read_call_list(text, calls))
        return (yield from _read_named(text, calls))

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        if _ARGS not in opaque_tokens:
            objects = separated("object", ", ", several=parallel)
            return f"calls: opening {quoted(' ')}? {quoted('[')} {objects} {quoted(']')}\n" + lark_object(tools)
        call_id = f"({marker(_CALL_ID, opaque_tokens)} /[0-9A-Za-z]{{{_ID_LENGTH}}}/)?"
        between = f"{call_id if _CALL_ID in opaque_tokens else ''} {marker(_ARGS, opaque_tokens)}"
        named = [f"{quoted(tool.name)} {between} {fits(tool.schema)}" for tool in tools]
        return f"calls: {'call+' if parallel else 'call'}\ncall: opening {any_of(named)}\n"

    def lark_beginning(self, names: Sequence[str]) -> str:
        return f"{ANYTHING}{re.escape(_OPENING)}"

    def write_calls(self, calls: Sequence[Call]) -> str:
        return f"{_OPENING}[{', '.join(map(write_call_object, calls))}]"

    def new_id(self) -> str:
        return random_id(prefix="", length=_ID_LENGTH)


def _read_named(text: Lookahead, calls: Calls) -> Reader[bool]:
    name = yield from text.take_all(_NAME)
    if name not in calls.names or not (yield from text.skip_space()):
        return False
    calls.start(name, text.at)
    if (yield from text.take(_CALL_ID)):
        yield from text.take_all(_ID)
    yield from text.take_last(_ARGS)
    if (yield from text.skip_space()) != "{" or not (yield from pass_on(text, read_value(text), calls)):
        return False
    calls.end(text.at)
    return True
