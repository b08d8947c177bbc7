"""Builds llguidance grammars that answers must match.

A grammar is the JSON text of llguidance's list of grammars, of which the first is the answer's (llguidance
documentation, "Syntax of LLGuidance Grammars" and "JSON schema -> llguidance converter").
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from genai_server.errors import InvalidField
from genai_server.text.answers.reasoning import REASONING_FORMATS, ReasoningFormat, ReasoningState
from genai_server.text.grammars.grammar_cost import check_cost, check_schema
from genai_server.text.grammars.lark import (
    ANYTHING,
    LINES,
    SPACES,
    any_of,
    expression,
    fits,
    lark_of_text,
    lifted,
    marker,
    one_line,
    quoted,
    spelled,
    to_text,
    unforced,
)
from genai_server.text.tool_formats.harmony import Harmony
from genai_server.text.tool_formats.tool_format import Tool, ToolFormat

LONGEST_GRAMMAR = 256 * 1024
# Longest GBNF in characters. Converting a million takes several seconds.
MAX_GBNF = 32_768
_GBNF_ROOT = re.compile(r"^\s*root\s*::=", re.MULTILINE)


def find_opaque_tokens(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """The ids, keyed by text, of tokens that texts in a grammar never match. `tokenizer` is a parsed tokenizer.json.

    In llguidance these are all added tokens that are marked as special or have the form <…>.
    """
    return {
        token["content"]: token["id"]
        for token in tokenizer.get("added_tokens", ())
        if token["special"] or (token["content"].startswith("<") and token["content"].endswith(">"))
    }


def json_object() -> str:
    """Any JSON object, on one line."""
    return json_schema({"type": "object"})


def json_schema(schema: Mapping[str, Any], *, param: str = "response_format") -> str:
    """JSON on one line that matches a JSON schema (draft 2020-12).

    llguidance's compiler says what it does not know of a schema. Properties come in the schema's order. It does not
    see to it that keys which the schema does not name differ. Raises InvalidField, naming `param`, for what cannot be
    followed exactly, and if an object has more than MAX_PROPERTIES.
    """
    check_schema(schema, param=param)
    try:
        return _grammars({"json_schema": one_line(schema)})
    except InvalidField as error:
        raise error.at(param) from None


def regex(pattern: str) -> str:
    """Text that matches a regular expression (of Rust's `regex` crate) from its beginning to its end."""
    return lark(f"start: {expression(pattern)}")


def choice(options: Sequence[str]) -> str:
    """Exactly one of these texts."""
    return lark(f"start: {any_of(map(quoted, options))}")


def lark(source: str) -> str:
    """Text that matches a grammar in llguidance's Lark dialect, starting with the rule `start`."""
    return _grammars({"lark_grammar": source})


def _with_texts(source: str) -> str:
    """Text that matches this server's own Lark, including nested grammars inserted by `fits`."""
    whole, nested = lifted(source)
    inner = [{"name": name, "lark_grammar": unforced(text)} for name, text in nested.items()]
    return _grammars({"lark_grammar": unforced(whole) if inner else whole}, *inner)


def arguments(schema: Mapping[str, Any], *, param: str) -> str:
    """JSON that matches the schema of a tool's arguments. Raises InvalidField as `json_schema` does."""
    if (source := lark_of_text(schema)) is None:
        return json_schema(schema, param=param)
    check_lark(source, param=param)
    return _with_texts(f"start: {fits(schema)}")


def given_grammar(source: str, *, param: str) -> str:
    """Text that matches a request's own grammar in Lark or GBNF.

    Raises InvalidField, naming `param`, for invalid GBNF and for schemas in Lark that are too expensive.
    """
    if is_gbnf(source):
        source = lark_of_gbnf(source, param=param)
    check_lark(source, param=param)
    return lark(unforced(source))


def is_gbnf(source: str) -> bool:
    """Whether a grammar has the root rule of GBNF, the format of llama.cpp, SGLang and XGrammar."""
    return _GBNF_ROOT.search(source) is not None


def lark_of_gbnf(source: str, *, param: str) -> str:
    """Convert a grammar in GBNF (llama.cpp, "GBNF Guide") to Lark with the root rule `start`.

    Raises InvalidField, naming `param`.
    """
    # Imported here because it loads a native library that few requests need.
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if len(source) > MAX_GBNF:
        raise InvalidField(param, "must have at most", limit=f"{MAX_GBNF} characters if it is GBNF", given=len(source))
    try:
        return gbnf_to_lark(source)
    except RecursionError:
        raise InvalidField(param, "cannot be used: the groups of the grammar are nested too deeply") from None
    except Exception as error:  # the library raises Exception itself, and IndexError at an unexpected end
        raise InvalidField(param, f"is not a valid GBNF grammar: {error}") from None


def check_lark(source: str, *, param: str) -> None:
    """Raise InvalidField if a schema in a Lark grammar is too expensive."""
    for place in re.finditer(r"%json\s*(?=\{)", source):
        try:
            schema, _ = _SCHEMAS.raw_decode(source, place.end())
        except (ValueError, RecursionError):
            raise InvalidField(param, "cannot be used: the schemas in a grammar must be JSON without doubles") from None
        check_schema(schema, param=param)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError
    return found


_SCHEMAS = json.JSONDecoder(object_pairs_hook=_without_doubles)


def tool_calls(
    tool_format: ToolFormat, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]
) -> str:
    """One call of a tool, or one or more if `parallel`, and nothing else.

    The answer parser reads it, and the arguments fit the tools' parameters. Raises InvalidField for parameters that are
    no object.
    """
    _check_parameters(tools)
    rules = [tool_format.lark(tools, parallel=parallel, opaque_tokens=opaque_tokens), "start: calls"]
    if tool_format.opening is not None:
        rules.append(f"opening: {spelled(tool_format.opening, opaque_tokens)}")
    return _with_texts("\n".join(rules))


def text_and_calls(
    tool_format: ToolFormat,
    tools: Sequence[Tool],
    *,
    parallel: bool,
    opaque_tokens: Mapping[str, int],
    reasoning: ReasoningFormat | None = None,
    state: ReasoningState = ReasoningState.BEFORE,
) -> str:
    """Text, or calls as in `tool_calls`, or both if the format marks calls, after reasoning.

    The answer parser finds no other calls, because the text cannot contain the beginning of one, and it does not begin
    like reasoning. Without `parallel`, nothing follows a call. The answer may open reasoning again that the prompt has
    closed. Raises InvalidField as `tool_calls` does.
    """
    _check_parameters(tools)
    opening, calls = tool_format.opening, tool_format.lark(tools, parallel=parallel, opaque_tokens=opaque_tokens)
    begun = [tool_format.lark_beginning([tool.name for tool in tools])]
    begun += [SPACES + re.escape(one.opening) for one in REASONING_FORMATS.values()]
    unbegun = f"~/({'|'.join(begun)}){ANYTHING}/"
    if isinstance(tool_format, Harmony):
        rules = [tool_format.lark_answer(calls, opaque_tokens)]
        if state is ReasoningState.CLOSED:  # the answer continues a message
            return _with_texts("\n".join([*rules, "start: MESSAGE | message answer"]))
    elif opening is None:
        # Whitespace is separate: if text can continue past the end of a lexeme, that lexeme is lost.
        rules = [f"answer: /{SPACES}/ (calls | TEXT)", f"TEXT: /([^ \\t\\r\\n]{ANYTHING})?/ & {unbegun}", calls]
    else:
        rules = [
            f"answer: {'calls* TEXT' if parallel else 'calls | TEXT'}",
            f"TEXT: /{ANYTHING}/ & {unbegun}",
            _opening(opening, "TEXT", opaque_tokens),
            calls,
        ]
        if reasoning is not None:
            rules += _thinking(tool_format, reasoning, tools, parallel=parallel, opaque_tokens=opaque_tokens)
            before = "" if state is ReasoningState.INSIDE else f"answer | {marker(reasoning.opening, opaque_tokens)} "
            return _with_texts("\n".join([*rules, f"start: {before}thinking"]))
    built = _with_texts("\n".join([*rules, "start: answer"]))
    if reasoning is None:
        return built
    state = ReasoningState.BEFORE if state is ReasoningState.CLOSED else state
    return after_reasoning(built, reasoning, state, opaque_tokens)


def _opening(opening: str, before: str, opaque_tokens: Mapping[str, int], suffix: str = "") -> str:
    """The rule for the marker of calls, after text that matches a terminal."""
    lazy = "" if opening in opaque_tokens else "[lazy]"
    return f"opening{suffix}{lazy}: {before} {marker(opening, opaque_tokens)}"


def _thinking(
    tool_format: ToolFormat,
    reasoning: ReasoningFormat,
    tools: Sequence[Tool],
    *,
    parallel: bool,
    opaque_tokens: Mapping[str, int],
) -> list[str]:
    """Rules with `thinking` on top: the rest of reasoning and the answer after it, or reasoning up to the end.

    A model may forget to close its reasoning and call a tool from within it. The answer parser looks for such calls
    where a line begins, so these are constrained as calls are.
    """
    suffix = "_in_thought"
    calls = tool_format.lark_calls(parallel=parallel, opaque_tokens=opaque_tokens, suffix=suffix)
    begun = tool_format.lark_beginning([tool.name for tool in tools], before=LINES)
    unclosed = f"~{expression(f'({ANYTHING}{re.escape(reasoning.closing)}|{begun}){ANYTHING}')}"
    return [
        f"thinking: calls{suffix}{'*' if parallel else '?'} (THOUGHT | rest_of_reasoning answer)",
        f"THOUGHT: /{ANYTHING}/ & {unclosed}",
        f"LINES: /{LINES}/ & {unclosed}",
        _opening(str(tool_format.opening), "LINES", opaque_tokens, suffix),
        calls,
        reasoning.lark_rest(opaque_tokens),
    ]


def either(one: str, other: str) -> str:
    """Text that matches one of two grammars, whose other parts have different names."""
    (first, *more), (second, *others) = (json.loads(grammar)["grammars"] for grammar in (one, other))
    return _grammars(
        {"lark_grammar": "start: @first | @second"},
        {**first, "name": "first"},
        {**second, "name": "second"},
        *more,
        *others,
    )


def after_text(text: str, grammar: str, opaque_tokens: Mapping[str, int]) -> str:
    """Text that matches a grammar of one part, after a text that may contain markers."""
    (answer,) = json.loads(grammar)["grammars"]
    return _grammars({"lark_grammar": f"start: {spelled(text, opaque_tokens)} @content"}, {**answer, "name": "content"})


def after_reasoning(
    grammar: str, reasoning: ReasoningFormat, state: ReasoningState, opaque_tokens: Mapping[str, int]
) -> str:
    """Text that matches the grammar after the reasoning that an answer may have which begins in this state."""
    if state is ReasoningState.CLOSED:
        return grammar
    rules = reasoning.lark(inside=state is ReasoningState.INSIDE, opaque_tokens=opaque_tokens)
    answer, *others = json.loads(grammar)["grammars"]
    return _grammars({"lark_grammar": f"start: reasoning @answer\n{rules}"}, {**answer, "name": "answer"}, *others)


def check_size(grammar: str, *, param: str) -> None:
    """Raise InvalidField for `param` if a grammar is too long or too expensive to compile."""
    if len(grammar) > LONGEST_GRAMMAR:
        raise InvalidField(
            param, "may yield a grammar of at most", limit=f"{LONGEST_GRAMMAR} characters", given=len(grammar)
        )
    check_cost(grammar, param=param)


def _check_parameters(tools: Sequence[Tool]) -> None:
    for tool in tools:
        check_schema(tool.parameters, param="tools")
        if not is_object(tool.parameters):
            kinds = (tool.parameters or {})["type"]
            raise InvalidField(
                "tools",
                f"must have objects as their parameters, unlike {quoted(tool.name)}",
                given=kinds,
            )


def is_object(schema: Mapping[str, Any] | None) -> bool:
    """Whether objects may match a schema according to its type; None stands for no properties."""
    kinds = (schema or {}).get("type", "object")
    return kinds == "object" or "object" in (kinds if isinstance(kinds, list) else ())


def _grammars(*grammars: dict[str, Any]) -> str:
    return to_text({"grammars": grammars})
