"""Tool calls as Llama 3.2 and 4 write them in Python: a list of calls with keyword arguments that are literals.

    [get_weather(city="Oslo"), add(a=1, b=2)]

They begin a line, or stand after `<|python_tag|>` or between `<|python_start|>` and `<|python_end|>`. Each argument is
emitted when it is complete. (Meta's prompt formats of Llama 3.2 and 4, "Zero shot function calling".)
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from genai_server.text.answers.lookahead import Lookahead, Reader
from genai_server.text.answers.python_literal import read_literal, to_json
from genai_server.text.grammars.lark import SPACES, any_of, fits, quoted
from genai_server.text.tool_formats.llama3_json import (
    PYTHON_END,
    PYTHON_START,
    PYTHON_TAG,
    lark_line_or_tag,
    lark_python_tag,
    read_python_tag,
)
from genai_server.text.tool_formats.tool_format import (
    ANY_OBJECT,
    Call,
    Calls,
    Tool,
    can_be_split,
    random_id,
    read_closing,
    write_json,
)

_NAME = re.compile(r"[\w.-]*")
_WORD, _KEY = re.compile(r"\w*"), re.compile(r"\w+")
_ANY_KEY = "[A-Za-z_][0-9A-Za-z_]*"
_STARS = "**"


class Pythonic:
    """See the module docstring."""

    name = "pythonic"
    result_role = "tool"
    shown_tokens = (PYTHON_TAG, PYTHON_START, PYTHON_END)
    beginnings = "<["
    opening = None

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from read_python_tag(text)) and not new_line:
            return False
        if not (yield from text.take("[")):
            return False
        while (yield from _read_call(text, calls)):
            yield from text.skip_space()
            if (yield from text.take("]")):
                yield from read_closing(text, PYTHON_END)
                return True
            if not (yield from text.take(",")):
                return False
        return False

    def lark(self, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]) -> str:
        more = f"({quoted(', ')} call)*" if parallel else ""
        rules = [f"calls: {lark_python_tag(opaque_tokens)} first_call {more} {quoted(']')}"]
        for rule, before in (("first_call", "["), ("call", "")):
            calls = (f"{quoted(f'{before}{tool.name}(')} call_{number}" for number, tool in enumerate(tools))
            rules.append(f"{rule}: {any_of(calls)}")
        for number, tool in enumerate(tools):
            rules += _lark_arguments(number, tool.schema)
        return "\n".join(rules) + "\n"

    def lark_beginning(self, names: Sequence[str]) -> str:
        return lark_line_or_tag(rf"\[{SPACES}({'|'.join(map(re.escape, names))})\(")

    def write_calls(self, calls: Sequence[Call]) -> str:
        return f"[{', '.join(f'{call.name}({_keywords(call.arguments)})' for call in calls)}]"

    def new_id(self) -> str:
        return random_id()


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
