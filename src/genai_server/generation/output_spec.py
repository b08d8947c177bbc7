"""Decides what the answers to a request may contain and must match, its `OutputSpec`: the tools that the answers may
call, the grammar into which `ChatConstraint` combines all constraining fields of the request (tools, `response_format`,
`structured_outputs`), and the parser that reads the answers. `CheckedSpecs` checks that the grammars compile.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from genai_server.errors import InvalidField, quoted
from genai_server.generation.parameters.chat_messages import AnyTool, ChatParameters, ChosenTool
from genai_server.generation.parameters.chat_messages import AnyTool as GivenTool
from genai_server.generation.parameters.sampling_parameters import SamplingFields, StructuredOutputs
from genai_server.grammar_checker.checker import GrammarChecker, SaltedCache
from genai_server.http.request_state import RunInTurn, at_once
from genai_server.text.answers.answer_text import AnswerParser, PlainParser
from genai_server.text.answers.reasoning import ReasoningState
from genai_server.text.codec import TextCodec
from genai_server.text.grammars import grammar
from genai_server.text.grammars.json_schema import EVERYTHING, any_value, relaxed
from genai_server.text.grammars.lark import lark_of_text
from genai_server.text.prompts.prompt import CONTINUE
from genai_server.text.tool_formats.all_formats import Dialect
from genai_server.text.tool_formats.tool_format import ANY_OBJECT, Tool, ToolFormat
from genai_server.workers.tasks import Requester

# The error message for a grammar; None if it is valid.
Complain = Callable[[str], Awaitable[str | None]]

_STRUCTURE, _FORMAT = "structured_outputs", "response_format"
_SCHEMA = "must be a supported JSON schema"
_CALLABLE = "must be functions whose calls can be constrained"
# The name of the constraint to text or calls.
_CALLS = "calls or text"


@dataclass(frozen=True)
class Constraint:
    """A grammar that an answer must match, and the field of the request that requires it, for error messages. It may be
    combined from `parts`, such as one for each tool. `structure` and `ChatConstraint` create it.
    """

    grammar: str
    field: str
    # What the field must be, as text that follows its name: "must be ...".
    rule: str
    # The combined constraints, so that an error can name the field concerned.
    parts: tuple["Constraint", ...] = ()
    # Whether the request demands it; otherwise it may be relaxed or dropped.
    is_promised: bool = True
    # The name of a part among the others.
    name: str = ""

    @property
    def is_needed(self) -> bool:
        """Whether an answer must fail if the engine cannot follow the grammar while it generates the answer. If not,
        the engine continues without the grammar.
        """
        return self.is_promised or self.name != _CALLS

    async def check(self, complain: Complain) -> frozenset[str]:
        """Check that the grammar compiles. Return an empty set if it does, and otherwise the names of the parts whose
        JSON schemas have to be relaxed: the caller builds a new constraint without what cannot be enforced in them.

        `complain` compiles a grammar, and returns an error message, or None for a valid grammar; errors that it raises
        are passed on. Raises InvalidField with the message if a grammar that the request demands does not compile.
        """
        try:
            await self._check(complain)
            return frozenset()
        except InvalidField:
            loose = {part.name for part in self.parts if not await part._compiles(complain)}
            # Each part compiles, but the combination does not.
            loose = loose or {part.name for part in self.parts if not part.is_promised}
            if loose:
                return frozenset(loose)
            if self.is_promised:
                raise
            return frozenset({self.name})

    async def _compiles(self, complain: Complain) -> bool:
        """Return whether the grammar compiles; `complain` is as in `Constraint.check`. Raises InvalidField if it does
        not, but the request demands the constraint.
        """
        try:
            await self._check(complain)
        except InvalidField:
            if self.is_promised:
                raise
            return False
        return True

    async def _check(self, complain: Complain) -> None:
        grammar.check_size(self.grammar, param=self.field)
        if (words := await complain(self.grammar)) is not None:
            raise self.refused(words)

    def refused(self, reason: str) -> InvalidField:
        """Return the error for a request with this constraint, which cannot be enforced. The error names the
        constraint's field, what the field must be, and `reason`.
        """
        return InvalidField(self.field, f"{self.rule}: {reason}")


def structure(options: StructuredOutputs | None) -> Constraint | None:
    """Return the constraint that the field `structured_outputs` of a request demands; None if the request has no such
    field. Raises InvalidField if no grammar can be made of the field.
    """
    if options is None:
        return None
    with _naming(_STRUCTURE):
        if options.regex is not None:
            rule = "must be a regular expression in the syntax of Rust's regex crate"
            return Constraint(grammar.regex(options.regex), f"{_STRUCTURE}.regex", rule)
        if options.choice is not None:
            return Constraint(grammar.choice(options.choice), f"{_STRUCTURE}.choice", "must be a list of texts")
        if options.grammar is not None:
            rule = "must be a grammar in GBNF or in llguidance's dialect of Lark"
            field = f"{_STRUCTURE}.grammar"
            return Constraint(grammar.request_grammar(options.grammar, param=field), field, rule)
        return Constraint(
            grammar.json_schema(_schema(options.json_), param=f"{_STRUCTURE}.json"), f"{_STRUCTURE}.json", _SCHEMA
        )


class ChatConstraint:
    """Builds the constraint of the answers to one chat from its tools, response format and structured outputs. Created
    for each attempt; after `build`, `left_out` has the schema keywords that are not enforced.

    With `best_effort`, as much as possible of JSON schemas that are not strict is enforced, and what cannot be enforced
    is not refused. `loose` has the names of functions or fields whose schemas are not enforced at all, because their
    grammars do not compile.
    """

    def __init__(self, body: ChatParameters, codec: TextCodec, *, best_effort: bool, loose: frozenset[str]) -> None:
        self._loose = loose
        # Schema keywords that are not enforced, with their fields.
        self.left_out: list[tuple[str, str]] = []
        self._body = body
        self._codec = codec
        self._best_effort = best_effort

    def build(self, tools: list[GivenTool], state: ReasoningState) -> Constraint | None:
        """Return the constraint of an answer that may call `tools`; None if nothing is required of the answer. `state`
        says whether the answer begins before, within or after reasoning.

        Raises InvalidField if no grammar can be built.
        """
        if _CALLS in self._loose:  # calls cannot be constrained
            tools = []
        text_constraint, reasoning = self._wanted(), self._codec.dialect.reasoning
        if text_constraint and reasoning and reasoning.answer_opening and state is not ReasoningState.CLOSED:
            built = grammar.after_text(reasoning.answer_opening, text_constraint.grammar, self._codec.opaque_tokens)
            text_constraint = replace(text_constraint, grammar=built)
        forced = self._body.tool_choice not in (None, "none", "auto")
        chosen = _chosen(self._body.tool_choice, tools)
        parts = [
            self._part(index, tool, asks=forced or text_constraint is not None) for index, tool in enumerate(chosen)
        ]
        functions = [tool for tool, _ in parts]
        constraint = text_constraint
        if forced:  # the response format applies to text answers only
            constraint = self._calls(functions)
        elif text_constraint is not None and functions:
            constraint = replace(
                text_constraint, grammar=grammar.either(self._calls(functions).grammar, text_constraint.grammar)
            )
        elif functions:
            is_promised = any(tool.function.strict for tool in chosen)
            # In formats without a marker, no text could precede calls.
            if is_promised or self._form.opening is not None:
                constraint = replace(self._text_or_calls(functions, state), is_promised=is_promised, name=_CALLS)
        if constraint is None:
            return None
        if reasoning is not None and constraint.name != _CALLS:
            built = grammar.after_reasoning(constraint.grammar, reasoning, state, self._codec.opaque_tokens)
            constraint = replace(constraint, grammar=built)
        return replace(
            constraint,
            parts=(*([text_constraint] if text_constraint and not forced else []), *(part for _, part in parts)),
        )

    def _wanted(self) -> Constraint | None:
        """Return the constraint of an answer that is not a tool call, by the request's fields `response_format` and
        `structured_outputs`; None if neither requires anything.

        Raises InvalidField if the constraint cannot be enforced, or if both fields require something.
        """
        structured, form = structure(self._body.structured_outputs), self._body.response_format
        if form is None or form.type == "text":
            return structured
        if structured is not None:
            raise InvalidField(_STRUCTURE, "cannot be combined with", other=_FORMAT)
        if (named_schema := form.answer_schema) is None:
            return Constraint(grammar.json_object(), _FORMAT, "must be supported")
        schema: Mapping[str, Any]
        field, schema = f"{_FORMAT}.{named_schema[0]}", named_schema[1]
        is_strict = form.json_schema is not None and bool(form.json_schema.strict)
        is_promised = is_strict or not self._best_effort
        if not is_promised:
            schema = self._relaxed(schema, field, field)
        with _naming(field):
            built = grammar.json_schema(schema, param=field)
        return Constraint(built, field, _SCHEMA, is_promised=is_promised or field in self._loose, name=field)

    def _part(self, index: int, tool: GivenTool, *, asks: bool) -> tuple[Tool, Constraint]:
        """Return the function of a tool, and the constraint of the function's arguments. `index` is the tool's index in
        the request.

        `asks` says whether the request demands a tool call or a format, so that the arguments must match their JSON
        schema even if it is not strict. Raises InvalidField if the arguments cannot be constrained.
        """
        function = tool.function
        parameters: Mapping[str, Any] | None = function.parameters
        is_promised = bool(function.strict) or (asks and not self._best_effort)
        if not is_promised:
            if function.strict is False and not asks:
                parameters = ANY_OBJECT
            elif parameters is not None:
                parameters = self._relaxed(parameters, function.name, f"tools[{index}].parameters" if asks else None)
                parameters = parameters if grammar.is_object(parameters) else ANY_OBJECT
        definition = Tool(function.name, parameters, is_promised=is_promised)
        rule = f"must have supported JSON schemas as their parameters; those of {quoted(definition.name)} are not"
        if lark_of_text(definition.schema) is not None:
            rule = f"must have supported Lark grammars as their formats; that of {quoted(definition.name)} is not"
        try:
            built = grammar.arguments(definition.schema, param="tools")
        except InvalidField as error:
            reason = error.sentence(None, error.other, error.given).removeprefix("cannot be used: ")
            raise InvalidField("tools", f"{rule}: {reason}") from None
        return definition, Constraint(
            built, "tools", rule, is_promised=is_promised or definition.name in self._loose, name=definition.name
        )

    def _relaxed(self, schema: Mapping[str, Any], name: str, field: str | None) -> Mapping[str, Any]:
        """Return the part of a JSON schema that can be enforced. `name` is the name of the function that has the schema
        as its parameters, or of the field that has it.

        The keywords that are left out are recorded for `field`, the field that the client is told, unless it is None.
        Raises InvalidField for a response format that is not a schema. If a tool's parameters are not a schema, any
        value is allowed for them, so that the other tools can be used.
        """
        enforced, left_out = any_value(schema), [EVERYTHING]
        try:
            if name not in self._loose:
                enforced, left_out = relaxed(schema)
        except InvalidField as error:
            if name == field:
                raise error.at(field) from None
        if field is not None:
            self.left_out += [(field, f": {word}") for word in left_out]
        return enforced

    @property
    def _form(self) -> ToolFormat:
        form = self._codec.dialect.tool_format
        assert form is not None, "tools are only offered to models with a tool call format"
        return form

    def _calls(self, tools: list[Tool]) -> Constraint:
        """Return the constraint that an answer consists of calls of these tools and nothing else."""
        with _naming("tools"):
            built = grammar.tool_calls(
                self._form, tools, parallel=self._is_parallel, opaque_tokens=self._codec.opaque_tokens
            )
        return Constraint(built, "tools", _CALLABLE)

    def _text_or_calls(self, tools: list[Tool], state: ReasoningState) -> Constraint:
        """Return the constraint that an answer consists of text and of calls of these tools, after reasoning. `state`
        says whether the answer begins before, within or after reasoning.
        """
        with _naming("tools"):
            built = grammar.text_and_calls(
                self._form,
                tools,
                parallel=self._is_parallel,
                opaque_tokens=self._codec.opaque_tokens,
                reasoning=self._codec.dialect.reasoning,
                state=state,
            )
        return Constraint(built, "tools", _CALLABLE)

    @property
    def _is_parallel(self) -> bool:
        return self._body.parallel_tool_calls is not False and not isinstance(self._body.tool_choice, ChosenTool)


def _chosen(choice: object, tools: list[GivenTool]) -> list[GivenTool]:
    """Return the tools that may be called: all of `tools`, or the one that `choice`, the field `tool_choice`, names.
    Raises InvalidField if that one is not in `tools`.
    """
    if not isinstance(choice, ChosenTool):
        return tools
    name = choice.function.name
    if not (named := [tool for tool in tools if tool.function.name == name]):
        raise InvalidField("tool_choice", f"names the function {quoted(name)}, which is not in tools")
    return named


def _schema(schema: Any) -> dict[str, Any]:
    """Return a JSON schema as a dictionary. `schema` is the field `structured_outputs.json`, which is a schema or the
    text of one. The schema `true` becomes one that allows any value, `false` one that allows none.

    Raises InvalidField for any other value.
    """
    field = f"{_STRUCTURE}.json"
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise InvalidField(field, f"must be a JSON schema, and is not JSON: {error}") from None
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise InvalidField(field, "must be a JSON schema, an object")
    return schema


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Context manager in which an InvalidField error that names no field becomes one about the field `field`."""
    try:
        yield
    except InvalidField as error:
        if error.param is not None:
            raise
        raise error.at(field) from None


# Cached specs of one model. A grammar has at most 262,144 characters (`LONGEST_GRAMMAR`).
_MAX_CACHED = 64
# The fields that determine a grammar.
_FIELDS = {"tools", "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs"}


@dataclass(frozen=True)
class OutputSpec:
    """What the answers to one request may contain and must match: the callable tools, the grammar, and whether the
    prompt ends in reasoning. `generate` gives the grammar to the engine, and reads each answer with a parser of its
    own.
    """

    # How the model writes reasoning and tool calls.
    dialect: Dialect = Dialect()
    # JSON schemas of the arguments of callable functions, keyed by name.
    tools: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    # Maximum number of tool calls of an answer; None for any number.
    max_calls: int | None = None
    # The constraint that an answer must match, if any.
    constraint: Constraint | None = None
    # Whether the prompt ends in reasoning.
    starts_in_reasoning: bool = False
    # Schema keywords that are not enforced, with their fields.
    left_out: tuple[tuple[str, str], ...] = ()
    # Whether answers show only complete tool calls, as in AnswerParser.
    only_complete_calls: bool = False

    @property
    def grammar(self) -> str | None:
        """The grammar that answers must match, as text in one of the formats of llguidance, the library that enforces
        it; None if answers are unconstrained.
        """
        return self.constraint.grammar if self.constraint is not None else None

    @property
    def needs_grammar(self) -> bool:
        """Whether an answer must fail if the engine cannot follow the grammar while it generates the answer."""
        return self.constraint is None or self.constraint.is_needed

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        """The special tokens, such as markers of reasoning and tool calls, that the decoder must keep in the text
        because the parser looks for them.
        """
        formats = (self.dialect.tool_format if self.tools else None, self.dialect.reasoning)
        return tuple(token for form in formats if form is not None for token in form.shown_tokens)

    def parser(self) -> PlainParser:
        """Return a new parser, which splits the text of one answer into content, reasoning and tool calls."""
        if self.dialect.reasoning is None and not self.tools:
            return PlainParser()
        form = self.dialect.tool_format
        return AnswerParser(
            form,
            self.tools,
            reasoning=self.dialect.reasoning,
            starts_in_reasoning=self.starts_in_reasoning,
            new_id=form.new_id if form is not None else str,
            # Without a grammar, what begins as a call may continue as other text.
            only_complete_calls=self.only_complete_calls or self.constraint is None,
        )


def chat_output_spec(
    body: ChatParameters, codec: TextCodec, prompt: list[int], *, best_effort: bool = False, loose: Collection[str] = ()
) -> OutputSpec:
    """Build the output spec of a chat, whose encoded prompt is `prompt`. The grammar has not been checked yet.

    With `best_effort`, as much as possible of JSON schemas that are not strict is enforced. `loose` names the parts of
    the constraint, such as functions, whose schemas must not be enforced (see `Constraint.check`). Raises InvalidField.
    """
    dialect, tools = codec.dialect, offered_tools(body, codec)
    state = reasoning_state(body, codec, prompt)
    constraint = ChatConstraint(body, codec, best_effort=best_effort, loose=frozenset(loose))
    return OutputSpec(
        dialect,
        tools={tool.function.name: tool.function.parameters for tool in tools},
        max_calls=1 if body.parallel_tool_calls is False else None,
        constraint=constraint.build(tools, state),
        starts_in_reasoning=state is ReasoningState.INSIDE,
        left_out=tuple(constraint.left_out),
    )


def reasoning_state(body: ChatParameters, codec: TextCodec, prompt: list[int]) -> ReasoningState:
    """Return whether the answer to a chat begins before, within or after reasoning. This follows from the end of the
    chat's encoded prompt `prompt`, or from the beginning of the answer if the request gives one to continue.
    """
    reasoning = codec.dialect.reasoning
    if reasoning is None:
        return ReasoningState.BEFORE
    if (body.chat_template_kwargs or {}).get(CONTINUE) and isinstance(text := body.messages[-1].content, str):
        return reasoning.state_within(text)
    # Only the end matters; a marker is a few tokens at most.
    return reasoning.state_after(codec.decode(prompt[-16:]))


def plain_output_spec(body: SamplingFields) -> OutputSpec:
    """Build the output spec of a text completion, which has no tools or reasoning, by the field `structured_outputs`.

    Whether a grammar in this field compiles is checked later, by a `GrammarChecker`. Raises InvalidField if no grammar
    can be made of the field.
    """
    return OutputSpec(constraint=structure(body.structured_outputs))


class CheckedSpecs:
    """Builds the output specs of chats, checks that their grammars compile, and caches the specs for each API key. An
    API process has one, which `create_app` creates. For use by the event loop's thread only.

    The cache is there because an agent sends the same tools with each request, and building a grammar from them is
    slow.
    """

    def __init__(self, grammars: GrammarChecker, *, best_effort: bool) -> None:
        self._grammars = grammars
        # Whether to enforce as much as possible of schemas that are not strict.
        self._best_effort = best_effort
        # Specs by digest.
        self._cached: WeakKeyDictionary[TextCodec, SaltedCache[OutputSpec]] = WeakKeyDictionary()

    async def of(
        self,
        body: ChatParameters,
        codec: TextCodec,
        prompt: list[int],
        requester: Requester,
        in_turn: RunInTurn = at_once,
    ) -> OutputSpec:
        """Return the output spec of a chat, whose encoded prompt is `prompt`, with a grammar that compiles. Schemas
        that are not strict are relaxed until it does.

        `requester` is the owner of the task that compiles the grammar in a worker process. `in_turn` runs work that
        takes long for large schemas. Raises InvalidField, CheckerUnavailable and QueueFull.
        """
        if not body.tools and body.response_format is None and body.structured_outputs is None:
            return chat_output_spec(body, codec, prompt, best_effort=self._best_effort)
        cached = self._cached.setdefault(codec, SaltedCache(_MAX_CACHED))
        key = await in_turn(partial(_key, body, codec, prompt))
        if (spec := cached.get(requester.owner.tenant, key)) is not None:
            return spec
        spec = await self._build(body, codec, prompt, requester, in_turn)
        if spec.constraint is not None:  # the parts are only needed to find out which ones do not compile
            spec = replace(spec, constraint=replace(spec.constraint, parts=()))
        cached.put(requester.owner.tenant, key, spec)
        return spec

    async def _build(
        self, body: ChatParameters, codec: TextCodec, prompt: list[int], requester: Requester, in_turn: RunInTurn
    ) -> OutputSpec:
        best_effort, loose = self._best_effort, frozenset[str]()
        complain = partial(self._grammars.complaint, requester=requester)
        while True:
            build = partial(chat_output_spec, body, codec, prompt, best_effort=best_effort, loose=loose)
            spec = await in_turn(build, is_long=True)  # references can make much of a small schema
            more = frozenset[str]() if spec.constraint is None else await spec.constraint.check(complain)
            if not more:
                return spec
            loose |= more


def _key(body: ChatParameters, codec: TextCodec, prompt: list[int]) -> bytes:
    """Return a digest of everything that determines a chat's output spec, as the key of a cache: the fields for tools
    and formats, and whether the answer begins within reasoning.
    """
    # Pydantic's JSON would turn NaN into null.
    fields = json.dumps(body.model_dump(include=_FIELDS), default=str)
    return hashlib.sha256(f"{reasoning_state(body, codec, prompt)}{fields}".encode()).digest()


def offered_tools(body: ChatParameters, codec: TextCodec) -> list[AnyTool]:
    """Return the tools that an answer may call; empty if `tool_choice` is "none". Raises InvalidField if the model does
    not support tools, or if two tools have the same name.
    """
    return _supported([] if body.tool_choice == "none" else body.tools or [], codec)


def listed_tools(body: ChatParameters, codec: TextCodec) -> list[AnyTool]:
    """Return the tools that the chat template puts at the beginning of the prompt; empty if `tool_choice` is "none".
    Raises InvalidField if the model does not support tools, or if two tools have the same name.
    """
    return _supported([] if body.tool_choice == "none" else list(body.listed_tools), codec)


def _supported(tools: list[AnyTool], codec: TextCodec) -> list[AnyTool]:
    if not tools:
        return []
    if not codec.writer.takes_tools or codec.dialect.tool_format is None:
        raise InvalidField(
            "tools",
            "are not supported by this model: its chat template has none, or uses a format unknown to this "
            "server (set it by GENAI_TOOL_PARSER)",
        )
    names = Counter(tool.function.name for tool in tools)
    if twice := [name for name, times in names.items() if times > 1]:
        raise InvalidField("tools", f"must have unique function names, given {quoted(twice[0])} twice")
    return tools
