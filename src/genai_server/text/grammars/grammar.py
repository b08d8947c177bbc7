"""Builds the llguidance grammars that answers must match.

A grammar is the JSON text of a list of llguidance grammars, of which the first describes the answer and the others are
referred to by name (llguidance documentation, "Syntax of LLGuidance Grammars" and "JSON schema -> llguidance
converter").
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
    extract_text_grammars,
    fits,
    lark_of_text,
    marker,
    one_line,
    quoted,
    spelled,
    to_text,
    without_forcing,
)
from genai_server.text.tool_formats.harmony import Harmony
from genai_server.text.tool_formats.tool_format import Tool, ToolFormat

LONGEST_GRAMMAR = 256 * 1024
# Longest GBNF in characters. Converting a million takes several seconds.
MAX_GBNF = 32_768
_GBNF_ROOT = re.compile(r"^\s*root\s*::=", re.MULTILINE)


def find_opaque_tokens(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """Return the token ids, keyed by text, of the tokens that literals and expressions in a grammar never match.

    `tokenizer` is a parsed tokenizer.json. In llguidance, these are all added tokens that are marked as special or have
    the form <…>. A grammar must refer to them by id.
    """
    return {
        token["content"]: token["id"]
        for token in tokenizer.get("added_tokens", ())
        if token["special"] or (token["content"].startswith("<") and token["content"].endswith(">"))
    }


def json_object() -> str:
    """Return a grammar for any JSON object, written on one line."""
    return json_schema({"type": "object"})


def json_schema(schema: Mapping[str, Any], *, param: str = "response_format") -> str:
    """Return a grammar for JSON on one line that matches a JSON schema (draft 2020-12).

    Properties appear in the schema's order. Keys that the schema does not name may occur more than once. Raises
    InvalidField, naming `param`, for keywords that cannot be enforced exactly, and for an object with more than
    MAX_PROPERTIES properties. Keywords that llguidance does not know are only reported when its compiler reads the
    grammar.
    """
    check_schema(schema, param=param)
    try:
        return _grammars({"json_schema": one_line(schema)})
    except InvalidField as error:
        raise error.at(param) from None


def regex(pattern: str) -> str:
    """Return a grammar for text that matches a regular expression (of Rust's `regex` crate) as a whole."""
    return lark(f"start: {expression(pattern)}")


def choice(options: Sequence[str]) -> str:
    """Return a grammar for exactly one of the given texts."""
    return lark(f"start: {any_of(map(quoted, options))}")


def lark(source: str) -> str:
    """Return a grammar for text that matches Lark rules in llguidance's dialect, starting with the rule `start`."""
    return _grammars({"lark_grammar": source})


def _with_texts(source: str) -> str:
    """Return a grammar for Lark rules written by this server, which may contain nested grammars inserted by `fits`."""
    rules, nested = extract_text_grammars(source)
    inner = [{"name": name, "lark_grammar": without_forcing(text)} for name, text in nested.items()]
    return _grammars({"lark_grammar": without_forcing(rules) if inner else rules}, *inner)


def arguments(schema: Mapping[str, Any], *, param: str) -> str:
    """Return a grammar for JSON that matches the schema of a tool's arguments.

    Raises InvalidField, naming `param`, if the schema, or a Lark grammar in it, cannot be enforced.
    """
    if (source := lark_of_text(schema)) is None:
        return json_schema(schema, param=param)
    check_lark(source, param=param)
    return _with_texts(f"start: {fits(schema)}")


def request_grammar(source: str, *, param: str) -> str:
    """Return a grammar for text that matches the Lark or GBNF grammar of a request.

    Raises InvalidField, naming `param`, for invalid GBNF, and for schemas in Lark that are too expensive to compile.
    """
    if is_gbnf(source):
        source = lark_of_gbnf(source, param=param)
    check_lark(source, param=param)
    return lark(without_forcing(source))


def is_gbnf(source: str) -> bool:
    """Whether a grammar has a rule `root ::=` and so is in GBNF, the format of llama.cpp, SGLang and XGrammar."""
    return _GBNF_ROOT.search(source) is not None


def lark_of_gbnf(source: str, *, param: str) -> str:
    """Convert a grammar in GBNF (llama.cpp, "GBNF Guide") to Lark with the root rule `start`.

    Raises InvalidField, naming `param`, if the grammar is invalid, too long or nested too deeply.
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
    """Raise InvalidField, naming `param`, if a JSON schema within a Lark grammar is invalid or too expensive to
    compile.
    """
    for match in re.finditer(r"%json\s*(?=\{)", source):
        try:
            schema, _ = _SCHEMAS.raw_decode(source, match.end())
        except (ValueError, RecursionError):
            raise InvalidField(param, "cannot be used: the schemas in a grammar must be JSON without doubles") from None
        check_schema(schema, param=param)


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(unique := dict(pairs)) < len(pairs):
        raise ValueError
    return unique


_SCHEMAS = json.JSONDecoder(object_pairs_hook=_object_without_duplicates)


def tool_calls(
    tool_format: ToolFormat, tools: Sequence[Tool], *, parallel: bool, opaque_tokens: Mapping[str, int]
) -> str:
    """Return a grammar for one tool call (one or more if `parallel`) and no other text.

    The calls are in the model's `tool_format`, and their arguments match the tools' parameters. `opaque_tokens` maps
    markers that are special tokens to token ids. Raises InvalidField if the parameters of a tool do not describe an
    object.
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
    """Return a grammar for free text or calls of the given tools, optionally after reasoning in the format `reasoning`.

    Text and calls may both occur if the tool format has a marker before calls. The text cannot contain the beginning of
    a call, so AnswerParser finds no calls that the grammar has not checked; neither can the text begin like reasoning.
    Without `parallel`, nothing follows a call. `state` says whether the prompt has opened or closed the reasoning; an
    answer may open closed reasoning again. `opaque_tokens` maps markers that are special tokens to token ids. Raises
    InvalidField if the parameters of a tool do not describe an object.
    """
    _check_parameters(tools)
    opening, calls = tool_format.opening, tool_format.lark(tools, parallel=parallel, opaque_tokens=opaque_tokens)
    beginnings = [tool_format.lark_beginning([tool.name for tool in tools])]
    beginnings += [SPACES + re.escape(form.opening) for form in REASONING_FORMATS.values()]
    unbegun = f"~/({'|'.join(beginnings)}){ANYTHING}/"
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
    """Return the Lark rule `opening`, with `suffix` after its name. It matches the text before the first tool call, and
    the marker `opening` that begins tool calls.

    `before` is the Lark terminal for the text before the marker.
    """
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
    """Return rules that start with `thinking`: the rest of reasoning and the answer after it, or unclosed reasoning.

    A model may forget to close its reasoning and call a tool from within it. AnswerParser looks for such calls at the
    beginning of a line, so the rules constrain them like other calls.
    """
    suffix = "_in_thought"
    calls = tool_format.lark_calls(parallel=parallel, opaque_tokens=opaque_tokens, suffix=suffix)
    beginning = tool_format.lark_beginning([tool.name for tool in tools], before=LINES)
    unclosed = f"~{expression(f'({ANYTHING}{re.escape(reasoning.closing)}|{beginning}){ANYTHING}')}"
    return [
        f"thinking: calls{suffix}{'*' if parallel else '?'} (THOUGHT | rest_of_reasoning answer)",
        f"THOUGHT: /{ANYTHING}/ & {unclosed}",
        f"LINES: /{LINES}/ & {unclosed}",
        _opening(str(tool_format.opening), "LINES", opaque_tokens, suffix),
        calls,
        reasoning.lark_rest(opaque_tokens),
    ]


def either(one: str, other: str) -> str:
    """Return a grammar for text that matches one of two grammars. Grammars nested in them must have different
    names.
    """
    (first, *more), (second, *others) = (json.loads(grammar)["grammars"] for grammar in (one, other))
    return _grammars(
        {"lark_grammar": "start: @first | @second"},
        {**first, "name": "first"},
        {**second, "name": "second"},
        *more,
        *others,
    )


def after_text(text: str, grammar: str, opaque_tokens: Mapping[str, int]) -> str:
    """Return a grammar for a fixed text, which may contain markers, followed by text that matches `grammar`.

    `grammar` must not contain nested grammars. `opaque_tokens` maps markers that are special tokens to token ids.
    """
    (answer,) = json.loads(grammar)["grammars"]
    return _grammars({"lark_grammar": f"start: {spelled(text, opaque_tokens)} @content"}, {**answer, "name": "content"})


def after_reasoning(
    grammar: str, reasoning: ReasoningFormat, state: ReasoningState, opaque_tokens: Mapping[str, int]
) -> str:
    """Return a grammar for optional reasoning followed by text that matches `grammar`.

    `state` says whether the prompt has opened or closed the reasoning. `opaque_tokens` maps markers that are special
    tokens to token ids.
    """
    if state is ReasoningState.CLOSED:
        return grammar
    rules = reasoning.lark(inside=state is ReasoningState.INSIDE, opaque_tokens=opaque_tokens)
    answer, *nested = json.loads(grammar)["grammars"]
    return _grammars({"lark_grammar": f"start: reasoning @answer\n{rules}"}, {**answer, "name": "answer"}, *nested)


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
    """Whether the `type` of a schema permits objects. True without a type, and for None (a tool without parameters)."""
    kinds = (schema or {}).get("type", "object")
    return kinds == "object" or "object" in (kinds if isinstance(kinds, list) else ())


def _grammars(*grammars: dict[str, Any]) -> str:
    return to_text({"grammars": grammars})
