"""Tool calls in Python notation, `get_weather(city="Oslo")`: functions to read, write and constrain them, and the
formats with such calls between markers (`MarkedPython`), which LFM2 and OLMo 3 use.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genai_server.text.answers.parsing import Lookahead, Reader, read_literal, to_json
from genai_server.text.grammars.lark import any_of, fits, quoted, separated, spelled
from genai_server.text.tool_formats.tool_format import (
    ANY_OBJECT,
    Call,
    Calls,
    Tool,
    ToolFormat,
    can_be_split,
    read_closing,
    read_list,
    write_json,
)

_NAME = re.compile(r"[\w.-]*")
_WORD, _KEY = re.compile(r"\w*"), re.compile(r"\w+")
_ANY_KEY = "[A-Za-z_][0-9A-Za-z_]*"
_STARS = "**"


@dataclass(frozen=True)
class MarkedPython(ToolFormat):
    """A tool call format with Python calls between the markers `opening` and `closing`, as LFM2 and OLMo 3 write them.

    With `has_brackets`, the calls are a list in brackets; otherwise each call has a line. `result_role` is the role of
    results in prompts.
    """

    name: str
    opening: str
    closing: str
    has_brackets: bool
    result_role: str = "tool"

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        return (self.opening, self.closing)

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take(self.opening)):
            return False
        yield from text.skip_space()
        if self.has_brackets:
            if not (yield from read_list(text, calls, read_call)):
                return False
            yield from read_closing(text, self.closing)
            return True
        while (yield from read_call(text, calls)):
            if not (yield from text.skip_space()) or (yield from text.take_last(self.closing)):
                return True
        return False

    @property
    def _punctuation(self) -> tuple[str, str, str]:
        """The texts before, between and after the calls, within the markers."""
        return ("[", ", ", "]") if self.has_brackets else ("", "\n", "")

    def lark_calls(self, *, parallel: bool, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
        before, between, after = self._punctuation
        calls = separated("called", between, several=parallel)
        end = spelled(f"{after}{self.closing}", opaque_tokens)
        return f"calls{suffix}: opening{suffix} {spelled(before, opaque_tokens)} {calls} {end}"

    def lark_called(self, tools: Sequence[Tool], opaque_tokens: Mapping[str, int]) -> str:
        return lark_python_calls(tools)

    def write_calls(self, calls: Sequence[Call]) -> str:
        before, between, after = self._punctuation
        return f"{self.opening}{before}{between.join(map(write_call, calls))}{after}{self.closing}"


def read_call(text: Lookahead, calls: Calls) -> Reader[bool]:
    """Read one tool call in Python notation, `name(key=literal, …)`, and emit each argument to `calls` when it is
    complete.

    Result of this generator, which yields while it needs more text: whether the text was such a call.
    """
    yield from text.skip_space()
    name = yield from text.take_all(_NAME)
    if name not in calls.names or not (yield from text.take("(")):
        return False
    start, separator, started = text.at, "", False
    while (yield from text.skip_space()) != ")":
        if started and not (yield from text.take(",")):
            return False
        key = yield from _read_keyword(text)
        if not key:
            return False
        if not started:
            _start(name, start, calls)
            started = True
        literal = yield from read_literal(text)
        member = _member(key, literal) if literal is not None else None
        if member is None:
            return False
        if member:
            calls.arguments(separator + member, text.at)
            separator = ", "
    text.at += 1
    if not started:
        _start(name, text.at, calls)
    calls.end(text.at)
    return True


def _start(name: str, read_to: int, calls: Calls) -> None:
    calls.start(name)
    calls.arguments("{", read_to)


def write_call(call: Call) -> str:
    """Return the text of one tool call in Python notation, as models write it. Argument names that are not valid in
    Python need the form `name(**{…})`.
    """
    if not all(map(_KEY.fullmatch, call.arguments)):
        return f"{call.name}({_STARS}{write_json(call.arguments)})"
    return f"{call.name}({', '.join(f'{key}={write_json(value)}' for key, value in call.arguments.items())})"


def _read_keyword(text: Lookahead) -> Reader[str]:
    """Read what precedes a value in a Python call: `name=`, or `**` before a dictionary.

    Result of this generator, which yields while it needs more text: the name, "**", or "" for neither.
    """
    yield from text.skip_space()
    if (yield from text.take(_STARS)):
        return _STARS
    key = yield from text.take_all(_WORD)
    yield from text.skip_space()
    return key if (yield from text.take("=")) else ""


def _member(key: str, literal: str) -> str | None:
    """Return a keyword argument of a Python call as the text of a JSON member, `"KEY": VALUE`.

    If `key` is "**", the literal is a dictionary, and its members are returned without braces. None if `literal` is not
    a Python literal with an equivalent in JSON.
    """
    value = to_json(literal)
    if value is None or key != _STARS:
        return value and f"{json.dumps(key, ensure_ascii=False)}: {value}"
    return value[1:-1].strip() if value.startswith("{") else None


def lark_python_calls(tools: Sequence[Tool], *, before_first: str = "") -> str:
    """Return Lark rules of a grammar that match one call to one of `tools` in Python notation.

    They are `called`, `first_called` (a call after the text `before_first`), and the rules for the arguments, which
    match the tools' parameters. Raises InvalidField for parameters that cannot be enforced.
    """
    rules = []
    for rule, before in (("called", ""), ("first_called", before_first)):
        calls = (f"{quoted(f'{before}{tool.name}(')} call_{number}" for number, tool in enumerate(tools))
        rules.append(f"{rule}: {any_of(calls)}")
    for number, tool in enumerate(tools):
        rules += _lark_arguments(number, tool.schema)
    return "\n".join(rules)


def _lark_arguments(number: int, schema: Mapping[str, Any]) -> list[str]:
    """Return the Lark rule `call_NUMBER`, which matches a Python call after its opening parenthesis, and the rules that
    it uses. NUMBER is `number`, and `schema` the schema of the arguments.

    Arguments appear in the order of the schema's properties. The rule `first_NUMBER_I` matches what may follow from the
    argument with index I on if no argument came before, and `rest_NUMBER_I` if one did. If the schema cannot be split
    by properties, the arguments are a dictionary after `**`.
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
        current, after, optional = f"{number}_{i}", f"{number}_{i + 1}", key not in schema.get("required", ())
        rules += [
            f"argument_{current}: {quoted(key + '=')} {fits({**value, **shared})}",
            f"first_{current}: argument_{current} rest_{after}" + f" | first_{after}" * optional,
            f"rest_{current}: {quoted(', ')} argument_{current} rest_{after}" + f" | rest_{after}" * optional,
        ]
    last = f"{number}_{len(properties)}"
    return [*rules, f'first_{last}: ""', f'rest_{last}: ""']


def _can_be_split(schema: Mapping[str, Any]) -> bool:
    return (
        can_be_split(schema)
        and schema.get("additionalProperties") is False
        and all(map(_KEY.fullmatch, schema["properties"]))
    )


# LFM2 and LFM2.5. (Model cards and chat templates of LFM2-1.2B, LFM2.5-1.2B-Instruct and LFM2.5-8B-A1B.)
#
#     <|tool_call_start|>[get_weather(city="Oslo"), now()]<|tool_call_end|>
LFM2 = MarkedPython("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", has_brackets=True)

# OLMo 3, which gets results in the role `environment`. (Chat template of Olmo-3.1-32B-Instruct; vLLM's parser.)
#
#     <function_calls>get_weather(city="Oslo")
#     now()</function_calls>
OLMO3 = MarkedPython("olmo3", "<function_calls>", "</function_calls>", has_brackets=False, result_role="environment")
