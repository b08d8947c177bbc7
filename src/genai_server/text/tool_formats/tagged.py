"""Tool call formats with a tag for each argument (`Tagged`), as several model families write them: GLM, MiniMax and
Qwen3-Coder. The formats are at the end of the module.

Values between tags are unquoted, and converted to JSON according to the parameter's schema. Where the schema allows
strings, a text stays a string, unless it is JSON of another type that the schema also allows: with the types
`["string", "null"]`, `null` is null and `5` is "5". A schema without a type allows everything. Each argument is emitted
when it is complete. A call is complete with its closing tag, and incomplete if the tag is missing.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any

from genai_server.errors import InvalidField
from genai_server.errors import quoted as shown
from genai_server.text.answers.parsing import Lookahead, Reader, is_json, to_json
from genai_server.text.grammars.grammar_cost import target
from genai_server.text.grammars.lark import (
    ANYTHING,
    SPACES,
    any_of,
    expression,
    fits,
    marker,
    quoted,
    separated,
    spelled,
)
from genai_server.text.tool_formats.tool_format import (
    ANY_OBJECT,
    Call,
    Calls,
    Tool,
    ToolFormat,
    can_be_split,
    write_json,
)

TEXT = "string"
_TYPES = frozenset({TEXT, "integer", "number", "boolean", "null", "object", "array"})
_TYPE_BY_FIRST_CHARACTER = {"{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null", '"': TEXT}
# Maximum nesting of schemas.
_DEPTH = 16
_ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "$comment"}


def meant(text: str, schema: Any, root: Mapping[str, Any]) -> str:
    """Return the JSON text of the value that a model means by the unquoted text of an argument, such as `5` or `Oslo`.

    `schema` is the schema of the argument, which says what types it may have; it is a part of the schema `root`, to
    which its references lead.
    """
    types = types_of(schema, root)
    if types == {TEXT}:
        return write_json(text)
    if TEXT not in types:
        value = to_json(text.strip())
        return write_json(text) if value is None else value
    other_types = types - {TEXT} | ({"integer"} if "number" in types else set())
    stripped = text.strip()
    return stripped if is_json(stripped) and _type_of(stripped) in other_types else write_json(text)


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types, such as "string", that values of `schema` may have.

    `schema` is a part of the schema `root`, to which its references lead.
    """
    return _types_of(schema, root, {}, _DEPTH)


def _types_of(schema: Any, root: Mapping[str, Any], resolved: dict[str, frozenset[str]], depth: int) -> frozenset[str]:
    """Return the JSON types, such as "string", that values of `schema` may have.

    References lead to parts of the schema `root`. `resolved` holds the types of references that have been followed, so
    that each is followed once; it is changed. `depth` is how deep the schema is still examined: at 0, all types are
    returned.
    """
    if not isinstance(schema, Mapping) or not depth:
        return _TYPES
    options = [_TYPES]
    if isinstance(reference := schema.get("$ref"), str):
        if reference not in resolved:
            resolved[reference] = _TYPES  # within itself it says nothing
            with suppress(InvalidField):
                resolved[reference] = _types_of(target(root, reference), root, resolved, depth - 1)
        options.append(resolved[reference])
    if (names := schema.get("type")) is not None:
        options.append(frozenset(kind for kind in _TYPES if kind in (names if isinstance(names, list) else [names])))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        options.append(frozenset(_type_of(json.dumps(value)) for value in values))
    for keyword in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(keyword), list):
            options.append(
                frozenset[str]().union(*(_types_of(branch, root, resolved, depth - 1) for branch in branches))
            )
    if isinstance(parts := schema.get("allOf"), list):
        options += [_types_of(part, root, resolved, depth - 1) for part in parts]
    return reduce(_joined, options) or _TYPES


def is_any_text(schema: Any) -> bool:
    """Whether every text that a model writes without quotes is a valid value of this schema. The schema must allow
    strings.
    """
    if not isinstance(schema, Mapping) or schema.keys() - _ANNOTATIONS - {"type", "anyOf"}:
        return schema is True
    return all(map(is_any_text, schema.get("anyOf", [])))


def texts_of(schema: Any) -> list[str] | None:
    """Return the values that a schema enumerates, as models write them without quotes.

    None for a schema that enumerates none or has other keywords besides.
    """
    if not isinstance(schema, Mapping) or schema.keys() - _ANNOTATIONS - {"type", "enum", "const"}:
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or {"enum", "const"} <= schema.keys():
        return None
    return [bare(value) for value in values]


def bare(value: Any) -> str:
    """Return an argument's value as models write it between tags: a string without quotes, any other value as JSON."""
    return value if isinstance(value, str) else write_json(value)


def _type_of(value: str) -> str:
    """Return the JSON type (such as "integer" or "object") of a value that is given as JSON text."""
    number = "number" if any(char in value for char in ".eE") else "integer"
    return _TYPE_BY_FIRST_CHARACTER.get(value[0], number)


def _joined(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """Return the JSON types that are in both sets. Every integer is also a number."""
    both = one & other
    if any("integer" in a and "number" in b for a, b in ((one, other), (other, one))):
        both |= {"integer"}
    return both


_NAME = re.compile(r"""[^\s<>"]*""")
# A parameter's name that tags can hold, and one of a schema that lists none.
_KEY = re.compile(r"""[^\s<>"]([^<>"\n]*[^\s<>"])?""")
_ANY_KEY = r"/[A-Za-z_][0-9A-Za-z_.-]*/"


@dataclass(frozen=True)
class Tagged(ToolFormat):
    """A tool call format with a tag for each argument, as GLM, MiniMax and Qwen3-Coder write it. Its fields are the
    tags.

    The call as a whole is between `opening` and `closing`; with `is_shared`, several calls stand between them. The
    other tags stand before and after the function's name, each parameter's name (key) and each value, and `end` after
    the arguments. `may_be_bare` says that calls may lack the opening tag. Line breaks in the tags are those that models
    write; when calls are read, whitespace between tags may differ.
    """

    name: str
    # Around one call, or around all calls of a group.
    opening: str
    closing: str
    # Before and after a function's name.
    before_name: str
    after_name: str
    # Before and after a parameter's name.
    before_key: str
    after_key: str
    # Before and after a value.
    before_value: str
    after_value: str
    # After the arguments of a call.
    end: str
    # Whether several calls share one pair of opening and closing tags.
    is_shared: bool = False
    # Whether calls may lack the opening tag.
    may_be_bare: bool = False

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        tags = (self.opening, self.closing, self.before_name, self.before_key, self.after_key, self.before_value)
        return tuple(filter(None, map(str.strip, (*tags, self.after_value, self.end))))

    def read_calls(self, text: Lookahead, calls: Calls, *, new_line: bool) -> Reader[bool]:
        if not (yield from text.take(self.opening)) and not self.may_be_bare:
            return False
        while (yield from self._read_call(text, calls)):
            start = text.at
            if not (yield from text.skip_space()):
                return True
            if self.closing and (yield from text.take_last(self.closing)):
                return True
            if not self.is_shared:
                text.at = start
                return True
        return False

    def _read_call(self, text: Lookahead, calls: Calls) -> Reader[bool]:
        yield from text.skip_space()
        if not (yield from text.take(self.before_name.strip())):
            return False
        name = yield from text.take_all(_NAME)
        if name not in calls.names or not (yield from text.peek()):
            return False
        if not (yield from text.take(self.after_name.strip())):
            return False
        calls.start(name)
        calls.arguments("{", text.at)
        parameters: Mapping[str, Any] = calls.parameters[name] or {}
        separator = ""
        while True:
            yield from text.skip_space()
            if (yield from text.take(self.end.strip())):
                break
            member = yield from self._read_argument(text, parameters)
            if member is None:
                return False
            calls.arguments(separator + member, text.at)
            separator = ", "
        calls.end(text.at)
        return True

    def _read_argument(self, text: Lookahead, parameters: Mapping[str, Any]) -> Reader[str | None]:
        """Read one argument of a call with its tags. `parameters` is the JSON schema of all arguments.

        Result of this generator, which yields while it needs more text: the argument as the text of a JSON member,
        `"NAME": VALUE`, with the type that the schema says; None if there is no argument.
        """
        if not (yield from text.take(self.before_key.strip())):
            return None
        key = yield from text.take_until(self.after_key.strip())
        if key is None:
            return None
        if before := self.before_value.strip():
            yield from text.skip_space()
            if not (yield from text.take(before)):
                return None
        value = yield from self._read_value(text)
        if value is None:
            return None
        if self.after_value.startswith("\n"):
            value = value.removeprefix("\n").removesuffix("\n")
        properties = parameters.get("properties")
        schema = properties.get(key.strip(), True) if isinstance(properties, Mapping) else True
        return f"{write_json(key.strip())}: {meant(value, schema, parameters)}"

    def _read_value(self, text: Lookahead) -> Reader[str | None]:
        """Read the value of an argument and its closing tag.

        A closing tag ends the value only if another tag of the call, or the end of the answer, follows. Otherwise it
        belongs to the value. Result of this generator, which yields while it needs more text: the value; None if the
        closing tag is missing.
        """
        start, tag = text.at, self.after_value.strip()
        while (yield from text.take_until(tag)) is not None:
            end, text.met_end = text.at, False
            yield from text.skip_space()
            follows = yield from text.take_any(*self._tags_after_values)
            text.at = end
            if follows or text.met_end:
                return text.between(start, end - len(tag))
        return None

    @property
    def _tags_after_values(self) -> tuple[str, ...]:
        return tuple(filter(None, map(str.strip, (self.before_key, self.end, self.closing))))

    def lark_calls(self, *, parallel: bool, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
        head = quoted("\n") if self.before_name.startswith("\n") else ""
        closing = spelled(self.closing, opaque_tokens)
        if self.is_shared:
            return f"calls{suffix}: opening{suffix} {head} {separated('called', '', several=parallel)} {closing}"
        calls = separated(f"call{suffix}", "\n", several=parallel)
        return f"calls{suffix}: {calls}\ncall{suffix}: opening{suffix} {head} called {closing}"

    def lark_called(self, tools: Sequence[Tool], opaque_tokens: Mapping[str, int]) -> str:
        rules = [f"called: {any_of(f'call_{number}' for number in range(len(tools)))}"]
        for number, tool in enumerate(tools):
            rules += self._lark_call(number, tool, opaque_tokens)
        return "\n".join([*rules, *self._lark_values(opaque_tokens)])

    def _lark_values(self, opaque_tokens: Mapping[str, int]) -> list[str]:
        """Return Lark rules of a grammar whose first rule `value` matches any text as an argument's value, and its
        closing tag.

        The text may contain closing tags that do not end the value, as `_read_value` reads it. `opaque_tokens` maps the
        texts of special tokens, which no literal matches, to token ids.
        """
        tag = self.after_value.strip()
        follows = f"{SPACES}({'|'.join(map(re.escape, self._tags_after_values))}){ANYTHING}"
        text = f"/{ANYTHING}/ & ~{expression(f'{ANYTHING}{re.escape(tag)}{follows}')}"
        if tag in opaque_tokens:
            # Whitespace before a token belongs to the text: a lexeme is lost if text can continue past its end.
            return [f"value: VALUE {marker(tag, opaque_tokens)}", f"VALUE: {text}"]
        # The text may contain closing tags. After one of them it does not continue with what follows its end.
        return [
            "value: first_text more_text*",
            f"first_text[lazy]: VALUE {quoted(self.after_value)}",
            f"more_text[lazy]: MORE {quoted(self.after_value)}",
            f"VALUE: {text}",
            f"MORE: {text} & ~{expression(follows)}",
        ]

    def _lark_call(self, number: int, tool: Tool, opaque_tokens: Mapping[str, int]) -> list[str]:
        head = spelled(self.before_name.lstrip(), opaque_tokens)
        after = spelled(self.after_name, opaque_tokens)
        parts, rules = self._lark_arguments(number, tool, opaque_tokens)
        end = spelled(f"\n{self.end}", opaque_tokens)
        return [f"call_{number}: {head} {quoted(tool.name)} {after} {parts} {end}", *rules]

    def _lark_arguments(self, number: int, tool: Tool, opaque_tokens: Mapping[str, int]) -> tuple[str, list[str]]:
        """Return the Lark expression for the arguments of a call to `tool`, and the rules that the expression uses.

        The arguments are in the order of the schema's properties. The names of the rules contain `number`.
        `opaque_tokens` maps the texts of special tokens, which no literal matches, to token ids. Raises InvalidField if
        the schema cannot be enforced.
        """
        schema = tool.schema
        fits(schema)  # refuses most of what is no schema
        properties = schema.get("properties", {})
        if not isinstance(properties, dict) or not all(isinstance(part, dict | bool) for part in properties.values()):
            raise InvalidField(
                "tools", f"must have objects of JSON schemas as properties; those of {tool.name} are not"
            )
        before, after = (
            spelled(text, opaque_tokens) for text in (f"\n{self.before_key}", f"{self.after_key}{self.before_value}")
        )
        if not can_be_split(schema) or not all(map(_KEY.fullmatch, schema["properties"])):
            if tool.is_promised and schema != ANY_OBJECT:
                raise _refused(tool, "its parameters are not a list of properties with plain names")
            return f"any_{number}*", [f"any_{number}: {before} {_ANY_KEY} {after} value"]
        parts, rules = [], []
        for index, (key, part) in enumerate(schema["properties"].items()):
            rule = f"argument_{number}_{index}"
            value = self._lark_value(tool, key, part, schema, opaque_tokens)
            rules.append(f"{rule}: {before} {quoted(key)} {after} {value}")
            parts.append(rule if key in schema.get("required", ()) else f"{rule}?")
        return " ".join(parts), rules

    def _lark_value(
        self,
        tool: Tool,
        key: str,
        schema: Mapping[str, Any],
        root: Mapping[str, Any],
        opaque_tokens: Mapping[str, int],
    ) -> str:
        end = spelled(self.after_value, opaque_tokens)
        shared = {"$defs": root["$defs"]} if "$defs" in root else {}
        if TEXT not in types_of(schema, root):
            return f"{fits({**schema, **shared})} {end}"
        if (texts := texts_of(schema)) and not any(self.after_value.strip() in text for text in texts):
            return f"{any_of(map(quoted, texts))} {end}"
        if tool.is_promised and not is_any_text(schema):
            raise _refused(tool, f"{shown(key)} is a text with more than a type, enum or const")
        return "value"

    def lark_beginning(self, names: Sequence[str], *, before: str = ANYTHING) -> str:
        beginnings = re.escape(self.opening)
        if self.may_be_bare:
            head, end = (re.escape(tag.strip()) for tag in (self.before_name, self.after_name))
            beginnings += f"|{head}({'|'.join(map(re.escape, names))}){end}"
        return f"{before}({beginnings})"

    def write_calls(self, calls: Sequence[Call]) -> str:
        written = [self._written(call) for call in calls]
        if self.is_shared:
            return f"{self.opening}\n{''.join(written)}{self.closing}"
        head = "\n" if self.before_name.startswith("\n") else ""
        return "\n".join(f"{self.opening}{head}{text}{self.closing}" for text in written)

    def _written(self, call: Call) -> str:
        arguments = (
            f"\n{self.before_key}{key}{self.after_key}{self.before_value}{bare(value)}{self.after_value}"
            for key, value in call.arguments.items()
        )
        return f"{self.before_name.lstrip()}{call.name}{self.after_name}{''.join(arguments)}\n{self.end}"


def _refused(tool: Tool, reason: str) -> InvalidField:
    """Return the error for a request whose tool wants arguments that match its schema strictly, which this format
    cannot enforce.

    `reason` says why, as the end of a sentence.
    """
    return InvalidField(
        "tools", f"must be ones that this model's format of calls can follow strictly; {tool.name} is not: {reason}"
    )


# GLM 4.5 to 4.7: a tag for the name and one for the value of each argument.
#
#     <tool_call>get_weather
#     <arg_key>city</arg_key>
#     <arg_value>Oslo</arg_value>
#     </tool_call>
#
# GLM 4.7 writes no line breaks. (Chat templates of GLM-4.5, GLM-4.6 and GLM-4.7.)
GLM = Tagged(
    name="glm",
    opening="<tool_call>",
    closing="",
    before_name="",
    after_name="",
    before_key="<arg_key>",
    after_key="</arg_key>",
    before_value="\n<arg_value>",
    after_value="</arg_value>",
    end="</tool_call>",
)

# MiniMax M2: one tag around all calls, and one for each call and argument.
#
#     <minimax:tool_call>
#     <invoke name="get_weather">
#     <parameter name="city">Oslo</parameter>
#     </invoke>
#     </minimax:tool_call>
#
# (Chat template and "Tool calling guide" of MiniMax-M2.)
MINIMAX = Tagged(
    name="minimax",
    opening="<minimax:tool_call>",
    closing="</minimax:tool_call>",
    before_name='\n<invoke name="',
    after_name='">',
    before_key='<parameter name="',
    after_key='">',
    before_value="",
    after_value="</parameter>",
    end="</invoke>\n",
    is_shared=True,
)

# Tool calls as Qwen3-Coder writes them, and after it Qwen 3.5 and Nemotron 3: a tag for each argument.
#
#     <tool_call>
#     <function=get_weather>
#     <parameter=city>
#     Oslo
#     </parameter>
#     </function>
#     </tool_call>
#
# Now and then the model leaves out the first line. (Chat template and model card of Qwen3-Coder.)
QWEN3_CODER = Tagged(
    name="qwen3_coder",
    opening="<tool_call>",
    closing="</tool_call>",
    before_name="\n<function=",
    after_name=">",
    before_key="<parameter=",
    after_key=">",
    before_value="\n",
    after_value="\n</parameter>",
    end="</function>\n",
    may_be_bare=True,
)
