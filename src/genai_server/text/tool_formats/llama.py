"""Tool calls of Llama 3.1 to 4, in JSON and in Python.

They begin a line, or stand after `<|python_tag|>` or between `<|python_start|>` and `<|python_end|>`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.answers.python_literal import read_literal, to_json
from genai_server.text.grammars.lark import ANYTHING, SPACES, any_of, fits, marker, quoted, separated
from genai_server.text.tool_formats.call_object import CALL_KEYS, lark_object, read_call_object, write_call_object
from genai_server.text.tool_formats.tool_format import (
    ANY_OBJECT,
    Call,
    Calls,
    Tool,
    ToolFormat,
    can_be_split,
    read_closing,
    write_json,
)

_PYTHON_TAG = "<|python_tag|>"
_PYTHON_START, _PYTHON_END = "<|python_start|>", "<|python_end|>"
_NAME = re.compile(r"[\w.-]*")
_WORD, _KEY = re.compile(r"\w*"), re.compile(r"\w+")
_ANY_KEY = "[A-Za-z_][0-9A-Za-z_]*"
_STARS = "**"


class _Llama(ToolFormat):
    """Calls without a marker, or after one of several."""

    opening = None
    shown_tokens = (_PYTHON_TAG, _PYTHON_START, _PYTHON_END)


class Llama3Json(_Llama):
    """Objects with "parameters", `;` between several.

        <|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo"}}

    (Meta's prompt formats of Llama 3.1, "JSON based tool calling", and the chat templates of Llama 3.2 and 4.)
    """

    name = "llama3_json"
    beginnings = "<{"

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from _read_python_tag(text)) and not new_line:
            return False
        while (yield from read_call_object(text, calls)):
            place = text.at
            yield from text.skip_space()
            if not (yield from text.take(";")):
                text.at = place
                yield from read_closing(text, _PYTHON_END)
                return True
        return False

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        return (
            f"calls: {_lark_python_tag(opaque_tokens)} {separated('object', '; ', several=parallel)}\n"
            + lark_object(tools, key="parameters")
        )

    def lark_beginning(self, names: Sequence[str]) -> str:
        # A key may contain escapes.
        return _lark_line_or_tag(rf'\{{{SPACES}"(({"|".join(CALL_KEYS)})"|[^"\\]*\\)')

    def write_calls(self, calls: Sequence[Call]) -> str:
        return "; ".join(write_call_object(call, key="parameters") for call in calls)


class Pythonic(_Llama):
    """A list of calls with keyword arguments that are Python literals.

        [get_weather(city="Oslo"), add(a=1, b=2)]

    Each argument is emitted when it is complete. (Meta's prompt formats of Llama 3.2 and 4, "Zero shot function
    calling".)
    """

    name = "pythonic"
    beginnings = "<["

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from _read_python_tag(text)) and not new_line:
            return False
        if not (yield from text.take("[")):
            return False
        while (yield from _read_call(text, calls)):
            yield from text.skip_space()
            if (yield from text.take("]")):
                yield from read_closing(text, _PYTHON_END)
                return True
            if not (yield from text.take(",")):
                return False
        return False

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        more = f"({quoted(', ')} call)*" if parallel else ""
        rules = [f"calls: {_lark_python_tag(opaque_tokens)} first_call {more} {quoted(']')}"]
        for rule, before in (("first_call", "["), ("call", "")):
            calls = (f"{quoted(f'{before}{tool.name}(')} call_{number}" for number, tool in enumerate(tools))
            rules.append(f"{rule}: {any_of(calls)}")
        for number, tool in enumerate(tools):
            rules += _lark_arguments(number, tool.schema)
        return "\n".join(rules) + "\n"

    def lark_beginning(self, names: Sequence[str]) -> str:
        return _lark_line_or_tag(rf"\[{SPACES}({'|'.join(map(re.escape, names))})\(")

    def write_calls(self, calls: Sequence[Call]) -> str:
        return f"[{', '.join(f'{call.name}({_keywords(call.arguments)})' for call in calls)}]"


def _read_python_tag(text: Lookahead) -> Reader[bool]:
    """Read the optional tag before calls and the whitespace after it."""
    tagged = (yield from text.take(_PYTHON_TAG)) or (yield from text.take(_PYTHON_START))
    if tagged:
        yield from text.skip_space()
    return tagged


def _lark_python_tag(opaque_tokens: Mapping[str, int]) -> str:
    """The Lark expression for the optional tag before calls."""
    return f"{marker(_PYTHON_TAG, opaque_tokens)}?" if _PYTHON_TAG in opaque_tokens else ""


def _lark_line_or_tag(beginning: str) -> str:
    """The expression for text up to and with a tag before calls, or with a line of this beginning."""
    tags = "|".join(map(re.escape, (_PYTHON_TAG, _PYTHON_START)))
    return rf"({ANYTHING}({tags})|({ANYTHING}\n)?{SPACES}{beginning})"


def _read_call(text: Lookahead, calls: Calls) -> Reader[bool]:
    yield from text.skip_space()
    name = yield from text.take_all(_NAME)
    if name not in calls.names or not (yield from text.take("(")):
        return False
    place, begin, started = text.at, "{", False
    while (yield from text.skip_space()) != ")":
        if started and not (yield from text.take(",")):
            return False
        key = yield from _read_keyword(text)
        if not key:
            return False
        if not started:
            calls.start(name, place)
            started = True
        literal = yield from read_literal(text)
        member = _member(key, literal) if literal is not None else None
        if member is None:
            return False
        if member:
            calls.arguments(begin + member, text.at)
            begin = ", "
    text.at += 1
    if not started:
        calls.start(name, text.at)
    calls.arguments("{}" if begin == "{" else "}", text.at)
    calls.end(text.at)
    return True


def _keywords(arguments: Mapping[str, Any]) -> str:
    if not all(map(_KEY.fullmatch, arguments)):
        return _STARS + write_json(arguments)
    return ", ".join(f"{key}={write_json(value)}" for key, value in arguments.items())


def _read_keyword(text: Lookahead) -> Reader[str]:
    """Read `name=` or `**`; returns the name or the stars, "" for neither."""
    yield from text.skip_space()
    if (yield from text.take(_STARS)):
        return _STARS
    key = yield from text.take_all(_WORD)
    yield from text.skip_space()
    return key if (yield from text.take("=")) else ""


def _member(key: str, literal: str) -> str | None:
    """The JSON of a keyword argument, or of a dictionary after stars; None if it is not a valid literal."""
    value = to_json(literal)
    if value is None or key != _STARS:
        return value and f"{json.dumps(key, ensure_ascii=False)}: {value}"
    return value[1:-1].strip() if value.startswith("{") else None


def _lark_arguments(number: int, schema: Mapping[str, Any]) -> list[str]:
    """The rules for the rest of a call after its bracket: each argument by its schema, in the order of its properties.

    `first_i` is what may come from the i-th argument on where none was before, `rest_i` where one was. Where the schema
    cannot be split, the arguments are a dictionary after stars.
    """
    head = f"call_{number}:"
    if schema == ANY_OBJECT:
        any_argument = f"/{_ANY_KEY}=/ {fits({})}"
        return [f"{head} ({any_argument} ({quoted(', ')} {any_argument})*)? {quoted(')')}"]
    if not _can_be_split(schema):
        return [f"{head} {quoted(_STARS)} {fits(schema)} {quoted(')')}"]
    rules = [f"{head} first_{number}_0 {quoted(')')}"]
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    properties = schema["properties"]
    for i, (key, value) in enumerate(properties.items()):
        here, after, optional = f"{number}_{i}", f"{number}_{i + 1}", key not in schema.get("required", ())
        rules += [
            f"argument_{here}: {quoted(key + '=')} {fits({**value, **shared})}",
            f"first_{here}: argument_{here} rest_{after}" + f" | first_{after}" * optional,
            f"rest_{here}: {quoted(', ')} argument_{here} rest_{after}" + f" | rest_{after}" * optional,
        ]
    last = f"{number}_{len(properties)}"
    return [*rules, f'first_{last}: ""', f'rest_{last}: ""']


def _can_be_split(schema: Mapping[str, Any]) -> bool:
    return (
        can_be_split(schema)
        and schema.get("additionalProperties") is False
        and all(map(_KEY.fullmatch, schema["properties"]))
    )
