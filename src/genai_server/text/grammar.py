"""What an answer must fit, as grammars of llguidance.

A grammar is the JSON text of llguidance's list of grammars, whose first one is the answer's (llguidance documentation,
"Syntax of LLGuidance Grammars" and "JSON schema"). JSON comes on one line with ", " and ": " between, as chat templates
show it to models: with flexible whitespace a model can write spaces until its tokens are used up.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from genai_server.errors import InvalidField
from genai_server.text.reasoning import ReasoningFormat
from genai_server.text.tool_formats import Tool, ToolFormat

LONGEST_GRAMMAR = 256 * 1024


def json_object() -> str:
    """Any JSON object."""
    return json_schema({"type": "object"})


def json_schema(schema: Mapping[str, Any]) -> str:
    """JSON that fits a JSON schema (draft 2020-12, as far as llguidance knows it; `validate` tells)."""
    return _grammars({"json_schema": _on_one_line(schema)})


def regex(pattern: str) -> str:
    """Text that matches a regular expression (of Rust's `regex` crate) as a whole."""
    grammar: str = LLMatcher.grammar_from_regex(pattern)
    return grammar


def choice(options: Sequence[str]) -> str:
    """Exactly one of these texts."""
    return lark("start: " + " | ".join(map(json.dumps, options)))


def lark(source: str) -> str:
    """What llguidance's dialect of Lark describes from its rule `start` on."""
    return _grammars({"lark_grammar": source})


def tool_calls(
    tool_format: ToolFormat, tools: Sequence[Tool], *, parallel: bool, special_tokens: Mapping[str, int]
) -> str:
    """A call of one of the tools or, if `parallel`, one or more, with arguments that fit the tools' parameters.

    `special_tokens` are the ids of the tokenizer's special tokens (`"special": true` in tokenizer.json) by their text.
    """
    return lark("")


def either(one: str, other: str) -> str:
    """What fits one of two grammars."""
    return one


def after_reasoning(
    grammar: str, reasoning: ReasoningFormat, *, starts_inside: bool, special_tokens: Mapping[str, int]
) -> str:
    """What fits the grammar, after reasoning: one that has begun, if `starts_inside`, else one that may be left out."""
    return grammar


def validate(grammar: str, *, param: str) -> None:
    """Compile the grammar, within limits. Raises InvalidField with the compiler's words.

    Takes milliseconds for usual grammars. The lock of Python is not held meanwhile.
    """
    if len(grammar) > LONGEST_GRAMMAR:
        raise InvalidField(f"the grammar of {len(grammar)} characters is longer than {LONGEST_GRAMMAR}", param=param)
    wrong, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LLParserLimits())
    if wrong:
        raise InvalidField(f"the grammar cannot be used: {messages[0]}", param=param)


def _grammars(*grammars: dict[str, Any]) -> str:
    return json.dumps({"grammars": grammars})


def _on_one_line(schema: Mapping[str, Any]) -> dict[str, Any]:
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return {**schema, "x-guidance": options}
