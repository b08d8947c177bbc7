"""Builds the grammars that the answers of a request must match: for JSON, regular expressions, choices, tool calls and
reasoning.

llguidance, the library that enforces grammars during generation, compiles them. Here, a grammar is the JSON text of a
list of llguidance grammars: the first one describes the answer, and refers to the others by name (llguidance
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
    """Return the tokens that a grammar must name by id, because its literals and expressions never match them: ids by
    text.

    `tokenizer` is the content of the model's tokenizer.json. In llguidance, such tokens are all added tokens that are
    marked as special or have the form <…>.
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
    """Return a grammar for JSON that matches the JSON schema `schema` (draft 2020-12) and is written on one line.

    Properties appear in the schema's order. Keys that the schema does not name may occur more than once. Errors name
    the field `param`: InvalidField is raised for keywords that cannot be enforced exactly, and for an object with more
    than MAX_PROPERTIES properties. Keywords that llguidance does not know are only reported when it compiles the
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
    """Return a grammar for text that matches the Lark rules `source` in llguidance's dialect. The first rule is
    `start`.
    """
    return _grammars({"lark_grammar": source})


def _with_texts(source: str) -> str:
    """Return a grammar for Lark rules that this server has built, with the start rule `start`.

    Lark grammars of custom tools, which `fits` has inserted into the rules, become nested grammars with names.
    """
    rules, nested = extract_text_grammars(source)
    inner = [{"name": name, "lark_grammar": without_forcing(text)} for name, text in nested.items()]
    return _grammars({"lark_grammar": without_forcing(rules) if inner else rules}, *inner)


def arguments(schema: Mapping[str, Any], *, param: str) -> str:
    """Return a grammar for the arguments of one tool call: JSON that matches the tool's schema.

    Raises InvalidField, naming the field `param`, if the schema, or a Lark grammar in it, cannot be enforced.
    """
    if (source := lark_of_text(schema)) is None:
        return json_schema(schema, param=param)
    check_lark(source, param=param)
    return _with_texts(f"start: {fits(schema)}")


def request_grammar(source: str, *, param: str) -> str:
    """Return a grammar for text that matches the grammar `source` of a request, which is written in Lark or GBNF.

    Raises InvalidField, naming the field `param`, for invalid GBNF, and for JSON schemas within Lark that are invalid
    or too expensive to compile.
    """
    if is_gbnf(source):
        source = lark_of_gbnf(source, param=param)
    check_lark(source, param=param)
    return lark(without_forcing(source))


def is_gbnf(source: str) -> bool:
    """Whether a grammar is written in GBNF, the format of llama.cpp, SGLang and XGrammar: it has a rule `root ::=`."""
    return _GBNF_ROOT.search(source) is not None


def lark_of_gbnf(source: str, *, param: str) -> str:
    """Convert a grammar in GBNF, llama.cpp's format (llama.cpp, "GBNF Guide"), to Lark rules with the start rule
    `start`.

    Raises InvalidField, naming the field `param`, if the grammar is invalid, too long or nested too deeply.
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
    """Check the JSON schemas within the Lark grammar `source` of a request.

    Raises InvalidField, naming the field `param`, if a schema is invalid or too expensive to compile.
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
    """Return a grammar for one tool call (one or more if `parallel`) and no other text, for requests that require a
    call.

    The calls are in `tool_format`, the format of the model, and their arguments match the parameters of `tools`.
    `opaque_tokens` maps the texts of special tokens, which no literal matches, to token ids. Raises InvalidField if the
    parameters of a tool do not describe an object.
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
    """Return a grammar for free text or calls of the given tools, optionally after reasoning, for requests that permit
    calls.

    `tool_format` and `reasoning` are the formats of the model's calls and reasoning; without `reasoning`, the answer
    has none. Text and calls may both occur if the tool format has a marker before calls. The text cannot contain the
    beginning of a call, so AnswerParser finds no calls that the grammar has not checked; neither can the text begin
    like reasoning. Without `parallel`, nothing follows a call. `state` says whether the prompt has opened or closed the
    reasoning; an answer may open closed reasoning again. `opaque_tokens` maps the texts of special tokens, which no
    literal matches, to token ids. Raises InvalidField if the parameters of a tool do not describe an object.
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
    """Return the Lark rule that matches an answer's text up to and including the marker `opening`, which begins tool
    calls.

    The rule is named `opening`, followed by `suffix`. `before` is the name of the Lark terminal for the text before the
    marker. `opaque_tokens` maps the texts of special tokens, which no literal matches, to token ids.
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
    """Return Lark rules for an answer that begins inside reasoning; the first rule is `thinking`.

    It matches reasoning, its closing marker and the answer after it, or reasoning that is never closed. A model may
    forget to close its reasoning and call a tool from within it. AnswerParser looks for such calls at the beginning of
    a line, so the rules constrain them like other calls.
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
    """Return a grammar for text that matches one of two grammars. Grammars that are nested in them must have different
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
    """Return a grammar for the fixed text `text`, followed by text that matches `grammar`.

    `text` may contain special tokens; `opaque_tokens` maps their texts to token ids. `grammar` must not contain nested
    grammars.
    """
    (answer,) = json.loads(grammar)["grammars"]
    return _grammars({"lark_grammar": f"start: {spelled(text, opaque_tokens)} @content"}, {**answer, "name": "content"})


def after_reasoning(
    grammar: str, reasoning: ReasoningFormat, state: ReasoningState, opaque_tokens: Mapping[str, int]
) -> str:
    """Return a grammar for optional reasoning in the format `reasoning`, followed by text that matches `grammar`.

    `state` says whether the prompt has opened or closed the reasoning; if it is closed, `grammar` is returned
    unchanged. `opaque_tokens` maps the texts of special tokens, which no literal matches, to token ids.
    """
    if state is ReasoningState.CLOSED:
        return grammar
    rules = reasoning.lark(inside=state is ReasoningState.INSIDE, opaque_tokens=opaque_tokens)
    answer, *nested = json.loads(grammar)["grammars"]
    return _grammars({"lark_grammar": f"start: reasoning @answer\n{rules}"}, {**answer, "name": "answer"}, *nested)


def check_size(grammar: str, *, param: str) -> None:
    """Check the length of a complete grammar and the time that its compilation takes.

    Raises InvalidField, naming the field `param`, if the grammar is too long or too expensive to compile.
    """
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
    """Whether a schema permits objects by its `type`. True without a type, and for None (a tool without parameters)."""
    kinds = (schema or {}).get("type", "object")
    return kinds == "object" or "object" in (kinds if isinstance(kinds, list) else ())


def _grammars(*grammars: dict[str, Any]) -> str:
    return to_text({"grammars": grammars})
