"""Reads a tool call written as a JSON object, `{"name": …, "arguments": {…}}`, which most formats share.

Llama writes "parameters" for "arguments". Both keys are accepted, before or after the name, and so are "type" and "id",
which are ignored. Arguments after the name are emitted as they arrive. Missing arguments and null are emitted as {}.
Some models write the arguments as a string that contains the object; it is emitted when it is complete.
"""

import json
from collections.abc import Sequence

from genai_server.text.answers.literals import is_json, read_colon, read_string, read_value
from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.grammars.lark import any_of, fits, quoted
from genai_server.text.tool_formats.tool_format import Call, Calls, Tool, read_list, write_json

_ARGUMENTS = ("arguments", "parameters")
_IGNORED = ("type", "id")
# Possible first keys of a call.
CALL_KEYS = ("name", *_ARGUMENTS, *_IGNORED)


def read_call_list(text: Lookahead, calls: Calls) -> Reader[bool]:
    """Read at least one call in a JSON array, or one call without array. Returns whether the text was a list of
    calls.
    """
    if (yield from text.skip_space()) != "[":
        return (yield from read_call_object(text, calls))
    return (yield from read_list(text, calls, read_call_object))


def read_call_object(text: Lookahead, calls: Calls) -> Reader[bool]:
    """Read one tool call, a JSON object with the function's name and arguments, and emit it.

    Returns whether the text was such a call.
    """
    yield from text.skip_space()
    if not (yield from text.take("{")):
        return False
    call = _Call(text, calls)
    while True:
        key = yield from _read_text(text)
        if key is None or not (yield from read_colon(text)):
            return False
        if not (yield from call.read_member(key)):
            return False
        if (yield from text.skip_space()) == "}":
            text.at += 1
            return call.finish()
        if not (yield from text.take(",")):
            return False


class _Call:
    """Reads the members of a JSON object that is a tool call."""

    def __init__(self, text: Lookahead, calls: Calls) -> None:
        self._text = text
        self._calls = calls
        self._named = False
        # Arguments before the name are held until it is known. Later ones are emitted as they arrive.
        self._waiting: str | None = None
        self._is_emitted = False

    def read_member(self, key: str) -> Reader[bool]:
        """Read the value of the object's member `key`, and emit the arguments if this is their value and the name is
        known.

        Returns whether the object can still be a call.
        """
        if key == "name" and not self._named:
            name = yield from _read_text(self._text)
            if name not in self._calls.names:
                return False
            self._named = True
            self._calls.start(str(name))
            return True
        if key in _ARGUMENTS and self._waiting is None and not self._is_emitted:
            return (yield from self._read_arguments())
        return key in _IGNORED and (yield from read_value(self._text))

    def finish(self) -> bool:
        """Handle the end of the object: emit arguments that have not been emitted. Returns whether the object was a
        call.
        """
        if not self._named:
            return False
        if not self._is_emitted:
            self._calls.arguments((self._waiting or "{}")[:-1], self._text.at)
        self._calls.end(self._text.at)
        return True

    def _read_arguments(self) -> Reader[bool]:
        text, start = self._text, self._text.at
        char = yield from text.skip_space()
        if char == "{" and self._named:
            self._is_emitted = True
            return (yield from _emit_value(text, self._calls))
        start = text.at
        if char not in ("{", '"', "n") or not (yield from read_value(text)):
            return False
        self._waiting = _object_text(text.since(start))
        return self._waiting is not None


def read_arguments(text: Lookahead, calls: Calls) -> Reader[bool]:
    """Read the arguments of the open call, a JSON object, emit them and end the call.

    Returns whether the text was a JSON object.
    """
    if (yield from text.skip_space()) != "{" or not (yield from _emit_value(text, calls)):
        return False
    calls.end(text.at)
    return True


def _emit_value(text: Lookahead, calls: Calls) -> Reader[bool]:
    """Read a JSON object and emit its text as arguments as it arrives, without the last brace.

    Returns whether it is valid.
    """
    start, reader = text.at, read_value(text)
    while True:
        try:
            next(reader)
        except StopIteration as end:
            read_to = text.at - bool(end.value)
            calls.arguments(text.between(start, read_to), read_to)
            return bool(end.value)
        calls.arguments(text.since(start), text.at)
        text.forget()
        start = text.at
        yield


def _read_text(text: Lookahead) -> Reader[str | None]:
    """Read a JSON string and return its content; None if there is no valid string."""
    yield from text.skip_space()
    start = text.at
    if not (yield from read_string(text)):
        return None
    decoded: str = json.loads(text.since(start))
    return decoded


def _object_text(value: str) -> str | None:
    """Return the arguments of a call as the text of a JSON object.

    `value` is valid JSON: an object, null (no arguments), or a string that contains an object. None if the string
    contains no object.
    """
    if value == "null":
        return "{}"
    if value.startswith("{"):
        return value
    content: str = json.loads(value)
    return content.rstrip() if content.startswith("{") and is_json(content) else None


def write_call_object(call: Call, *, key: str = "arguments") -> str:
    """Return one call as JSON. `key` is the name of the arguments' member."""
    return write_json({"name": call.name, key: call.arguments})


def lark_object(tools: Sequence[Tool], *, key: str = "arguments") -> str:
    """Return the Lark rule `called`: one call as a JSON object whose arguments match the tool's parameters."""
    heads = [quoted(f'{{"name": {json.dumps(tool.name)}, "{key}": ') for tool in tools]
    calls = [f"{head} {fits(tool.schema)} {quoted('}')}" for head, tool in zip(heads, tools, strict=True)]
    return f"called: {any_of(calls)}"
