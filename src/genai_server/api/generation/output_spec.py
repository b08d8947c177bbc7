"""The output spec of a request: which tools its answers may call, what they must match, and how they are parsed.

All fields that constrain an answer become one grammar, the `Constraint`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from genai_server.api.generation.prompts import offered_tools
from genai_server.errors import InvalidField
from genai_server.grammar_checker.pool import GrammarChecker
from genai_server.openai_api.schemas.chat import ChatParameters, NamedTool
from genai_server.openai_api.schemas.chat import Tool as GivenTool
from genai_server.openai_api.schemas.sampling import SamplingFields, StructuredOutputs
from genai_server.quoted_values import quoted
from genai_server.text.answers.answer_parser import AnswerParser
from genai_server.text.answers.answer_text import Parser, PlainParser
from genai_server.text.answers.dialect import Dialect
from genai_server.text.codec import TextCodec
from genai_server.text.grammars import grammar
from genai_server.text.tool_formats.tool_format import ANY_OBJECT, Tool

_STRUCTURE, _FORMAT = "structured_outputs", "response_format"
_SCHEMA = "must be a JSON schema that can be followed"


@dataclass(frozen=True)
class Constraint:
    """A grammar that an answer must match, and the field that it comes from."""

    grammar: str
    field: str
    # What the field must be, as text to follow its name: "must be ...".
    rule: str
    # The constraints that it combines, so that an error of one names its own field.
    parts: tuple["Constraint", ...] = ()

    async def check(self, checker: GrammarChecker) -> None:
        """Have the grammar compiled. Raises InvalidField with the compiler's message, and CheckerUnavailable."""
        try:
            await self._check(checker)
        except InvalidField:
            for part in self.parts:
                await part._check(checker)
            raise

    async def _check(self, checker: GrammarChecker) -> None:
        grammar.check_size(self.grammar, param=self.field)
        if (words := await checker.complaint(self.grammar)) is not None:
            raise self.refused(words)

    def refused(self, reason: str) -> InvalidField:
        """The error that names the field and the reason."""
        return InvalidField(f"{self.field} {self.rule}: {reason}", param=self.field)


@dataclass(frozen=True)
class OutputSpec:
    """What the answers of a request may and must be."""

    # How the model writes reasoning and tool calls.
    dialect: Dialect = Dialect()
    # The tools that an answer may call.
    tool_names: list[str] = field(default_factory=list)
    # Most tool calls of an answer; None for any number.
    most_calls: int | None = None
    # The grammar that an answer must match, if there is one.
    constraint: Constraint | None = None
    # Whether the prompt ends within reasoning.
    starts_in_reasoning: bool = False

    @property
    def grammar(self) -> str | None:
        """The grammar in one of llguidance's forms; None without a constraint."""
        return self.constraint.grammar if self.constraint is not None else None

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        """Special tokens that the parser must see."""
        formats = (self.dialect.tool_format if self.tool_names else None, self.dialect.reasoning)
        return tuple(token for one in formats if one is not None for token in one.shown_tokens)

    def parser(self) -> Parser:
        """A parser for one answer."""
        if self.dialect.reasoning is None and not self.tool_names:
            return PlainParser()
        form = self.dialect.tool_format
        return AnswerParser(
            form,
            self.tool_names,
            reasoning=self.dialect.reasoning,
            starts_in_reasoning=self.starts_in_reasoning,
            new_id=form.new_id if form is not None else str,
        )


def chat_output_spec(body: ChatParameters, codec: TextCodec, prompt: list[int]) -> OutputSpec:
    """The output spec of a chat with this encoded prompt; its grammar is not checked yet. Raises InvalidField."""
    dialect, tools = codec.dialect, offered_tools(body, codec)
    # Only the end matters; a marker is a few tokens at most.
    inside = dialect.reasoning is not None and dialect.reasoning.begins_inside(codec.decode(prompt[-16:]))
    return OutputSpec(
        dialect,
        tool_names=[tool.function.name for tool in tools],
        most_calls=1 if body.parallel_tool_calls is False else None,
        constraint=chat_constraint(body, tools, codec, starts_inside=inside),
        starts_in_reasoning=inside,
    )


def plain_output_spec(body: SamplingFields) -> OutputSpec:
    """The output spec of a text completion; its grammar is not checked yet. Raises InvalidField."""
    return OutputSpec(constraint=structure(body.structured_outputs))


def structure(wanted: StructuredOutputs | None) -> Constraint | None:
    """The constraint of `structured_outputs`. Raises InvalidField if it cannot be a grammar."""
    if wanted is None:
        return None
    with _naming(_STRUCTURE):
        if wanted.regex is not None:
            rule = "must be a regular expression as Rust's crate regex has them"
            return Constraint(grammar.regex(wanted.regex), f"{_STRUCTURE}.regex", rule)
        if wanted.choice is not None:
            return Constraint(grammar.choice(wanted.choice), f"{_STRUCTURE}.choice", "must be texts to choose from")
        if wanted.grammar is not None:
            rule = "must be a grammar in llguidance's dialect of Lark"
            field = f"{_STRUCTURE}.grammar"
            return Constraint(grammar.given_lark(wanted.grammar, param=field), field, rule)
        return Constraint(
            grammar.json_schema(_schema(wanted.json_), param=f"{_STRUCTURE}.json"), f"{_STRUCTURE}.json", _SCHEMA
        )


def chat_constraint(
    body: ChatParameters, tools: list[GivenTool], codec: TextCodec, *, starts_inside: bool
) -> Constraint | None:
    """The constraint of an answer that may call `tools`, if there is one; its grammar is not checked yet.

    With `starts_inside` the answer begins within reasoning. Raises InvalidField if the fields cannot be a grammar.
    """
    wanted = _wanted(body)
    forced = body.tool_choice not in (None, "none", "auto")
    held = _held(tools, strict_only=wanted is None and not forced)
    whole = _whole(body, wanted, held, codec, forced=forced, strict=any(tool.function.strict for tool in tools))
    if whole is None:
        return None
    if (reasoning := codec.dialect.reasoning) is not None:
        built = grammar.after_reasoning(
            whole.grammar, reasoning, starts_inside=starts_inside, opaque_tokens=codec.opaque_tokens
        )
        whole = replace(whole, grammar=built)
    return replace(whole, parts=(*([wanted] if wanted else []), *map(_parameters, held)))


def _whole(
    body: ChatParameters, wanted: Constraint | None, tools: list[Tool], codec: TextCodec, *, forced: bool, strict: bool
) -> Constraint | None:
    """The constraint of the answer after its reasoning: what is `wanted`, tool calls, or either."""
    if forced and wanted is not None:
        source = wanted.field.partition(".")[0]
        raise InvalidField(f"{source} cannot be combined with a tool_choice that forces a call", param=source)
    if forced:
        return _calls(body, tools, codec)
    if wanted is not None and tools:
        return replace(wanted, grammar=grammar.either(_calls(body, tools, codec).grammar, wanted.grammar))
    if strict:
        return _calls(body, tools, codec, beside_text=True)
    return wanted


def _wanted(body: ChatParameters) -> Constraint | None:
    """The constraint of an answer that is no tool call."""
    wanted, form = structure(body.structured_outputs), body.response_format
    if form is None or form.type == "text":
        return wanted
    if wanted is not None:
        raise InvalidField(f"give either {_FORMAT} or {_STRUCTURE}, not both", param=_STRUCTURE)
    if form.json_schema is None or form.json_schema.schema_ is None:
        return Constraint(grammar.json_object(), _FORMAT, "must be one that can be followed")
    with _naming(field := f"{_FORMAT}.json_schema.schema"):
        return Constraint(grammar.json_schema(form.json_schema.schema_, param=field), field, _SCHEMA)


def _held(tools: list[GivenTool], *, strict_only: bool) -> list[Tool]:
    """The functions with the schemas of their arguments: their parameters, or any object."""
    functions = [tool.function for tool in tools]
    return [Tool(one.name, one.parameters if one.strict or not strict_only else ANY_OBJECT) for one in functions]


def _chosen(choice: object, tools: list[Tool]) -> list[Tool]:
    """The tools that may be called. Raises InvalidField if `tool_choice` names another one."""
    if not isinstance(choice, NamedTool):
        return tools
    name = choice.function.name
    if not (named := [tool for tool in tools if tool.name == name]):
        raise InvalidField(
            f"tool_choice names the function {quoted(name)}, which is not among tools", param="tool_choice"
        )
    return named


def _calls(body: ChatParameters, tools: list[Tool], codec: TextCodec, *, beside_text: bool = False) -> Constraint:
    """The constraint to calls of the tools, or of the one that `tool_choice` names; with `beside_text` also to text."""
    form = codec.dialect.tool_format
    assert form is not None, "tools are offered only to a model with a format for its calls"
    parallel = body.parallel_tool_calls is not False and not isinstance(body.tool_choice, NamedTool)
    build = grammar.text_and_calls if beside_text else grammar.tool_calls
    with _naming("tools"):
        built = build(form, _chosen(body.tool_choice, tools), parallel=parallel, opaque_tokens=codec.opaque_tokens)
    return Constraint(built, "tools", "must be functions whose calls can be followed")


def _parameters(tool: Tool) -> Constraint:
    rule = f"must have JSON schemas that can be followed as their parameters; those of {quoted(tool.name)} are none"
    return Constraint(grammar.json_schema(tool.schema, param="tools"), "tools", rule)


def _schema(given: Any) -> dict[str, Any]:
    """A schema, which may be given as JSON text; `true` allows any value, `false` none."""
    field = f"{_STRUCTURE}.json"
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise InvalidField(f"{field} must be a JSON schema, and is not JSON: {error}", param=field) from None
    if isinstance(given, bool):
        given = {} if given else {"not": {}}
    if not isinstance(given, dict):
        raise InvalidField(f"{field} must be a JSON schema, an object", param=field)
    return given


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Name the field in errors that name none."""
    try:
        yield
    except InvalidField as error:
        if error.param is not None:
            raise
        raise InvalidField(f"{field}: {error.message}", param=field) from None
