"""Tool calls as Llama 3.2 and 4 write them in Python: a list of calls with keyword arguments that are literals.

    [get_weather(city="Oslo"), add(a=1, b=2)]

They begin a line, or stand after `<|python_tag|>` or between `<|python_start|>` and `<|python_end|>`. Each argument is
told when it is complete. (Meta's prompt formats of Llama 3.2 and 4, "Zero shot function calling".)
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from genai_server.text.lark import any_of, fits, quoted, separated
from genai_server.text.lookahead import Lookahead, Reader
from genai_server.text.python_literal import read_literal, to_json
from genai_server.text.tool_formats.base import Calls, Tool, random_id, read_closing
from genai_server.text.tool_formats.llama3_json import (
    PYTHON_END,
    PYTHON_START,
    PYTHON_TAG,
    lark_python_tag,
    read_python_tag,
)

_NAME = re.compile(r"[\w.-]*")
_WORD = re.compile(r"\w*")
_STARS = "**"
# A schema of these only can be split into one for each argument.
_SPLITTABLE = {"type", "properties", "required", "additionalProperties", "$defs", "title", "description", "$schema"}


class Pythonic:
    """See the module."""

    name = "pythonic"
    shown_tokens = (PYTHON_TAG, PYTHON_START, PYTHON_END)
    beginnings = "<["

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

    def lark(self, tools: Sequence[Tool], *, parallel: bool, special_tokens: Mapping[str, int]) -> str:
        calls = separated("call", ", ", several=parallel)
        rules = [f"calls: {lark_python_tag(special_tokens)} {quoted('[')} {calls} {quoted(']')}"]
        rules += [f"call: {any_of(f'call_{number}' for number in range(len(tools)))}"]
        for number, tool in enumerate(tools):
            rules += _lark_call(number, tool)
        return "\n".join(rules) + "\n"

    def new_id(self) -> str:
        return random_id()


def _read_call(text: Lookahead, calls: Calls) -> Reader[bool]:
    yield from text.skip_space()
    name = yield from text.take_all(_NAME)
    if name not in calls.names or not (yield from text.take("(")):
        return False
    place, begin = text.at, "{"
    while (yield from text.skip_space()) != ")":
        if begin != "{" and not (yield from text.take(",")):
            return False
        key = yield from _read_keyword(text)
        if not key:
            return False
        if begin == "{":
            calls.start(name, place)
        member = _member(key, (yield from read_literal(text)) or "")
        if not member:
            return False
        calls.arguments(begin + member, text.at)
        begin = ", "
    text.at += 1
    if begin == "{":
        calls.start(name, text.at)
    calls.arguments("{}" if begin == "{" else "}", text.at)
    calls.end(text.at)
    return True


def _read_keyword(text: Lookahead) -> Reader[str]:
    """Go past `name=` or `**`; returns the name or the stars, "" if there is neither."""
    yield from text.skip_space()
    if (yield from text.take(_STARS)):
        return _STARS
    key = yield from text.take_all(_WORD)
    yield from text.skip_space()
    return key if (yield from text.take("=")) else ""


def _member(key: str, literal: str) -> str:
    """The JSON of a keyword argument, or of those of a dictionary after stars; "" if the literal is none."""
    value = to_json(literal) or ""
    if key != _STARS:
        return value and f"{json.dumps(key)}: {value}"
    return value[1:-1].strip() if value.startswith("{") else ""


def _lark_call(number: int, tool: Tool) -> list[str]:
    """The rules for a call of one tool: each argument by its schema, in the order of its properties.

    `first_i` is what may come from the i-th argument on where none was before, `rest_i` where one was. Where the schema
    cannot be split, the arguments are a dictionary after stars.
    """
    head = f"call_{number}: {quoted(tool.name + '(')}"
    if not _can_be_split(tool.schema):
        return [f"{head} {quoted(_STARS)} {fits(tool.schema)} {quoted(')')}"]
    rules = [f"{head} first_{number}_0 {quoted(')')}"]
    shared = {"$defs": tool.schema["$defs"]} if "$defs" in tool.schema else {}
    properties = tool.schema.get("properties", {})
    for i, (key, schema) in enumerate(properties.items()):
        here, after, optional = f"{number}_{i}", f"{number}_{i + 1}", key not in tool.schema.get("required", ())
        rules += [
            f"argument_{here}: {quoted(key + '=')} {fits({**schema, **shared})}",
            f"first_{here}: argument_{here} rest_{after}" + f" | first_{after}" * optional,
            f"rest_{here}: {quoted(', ')} argument_{here} rest_{after}" + f" | rest_{after}" * optional,
        ]
    last = f"{number}_{len(properties)}"
    return [*rules, f'first_{last}: ""', f'rest_{last}: ""']


def _can_be_split(schema: Mapping[str, Any]) -> bool:
    properties = schema.get("properties", {})
    return (
        schema.keys() <= _SPLITTABLE
        and schema.get("additionalProperties") is False
        and set(schema.get("required", ())) <= properties.keys()
        and all(_WORD.fullmatch(key) and isinstance(value, dict) for key, value in properties.items())
        and '"$ref": "#/properties' not in json.dumps(schema)
    )
