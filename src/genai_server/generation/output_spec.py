"""Decides what the answers to a request may contain and must match: the tools that they may call, the grammar that they
must match, and the parser that reads them.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from genai_server.errors import InvalidField, quoted
from genai_server.generation.constraint import ChatConstraint, Constraint, structure
from genai_server.generation.parameters.chat_messages import AnyTool, ChatParameters
from genai_server.generation.parameters.sampling_parameters import SamplingFields
from genai_server.grammar_checker.checker import GrammarChecker, SaltedCache
from genai_server.http.request_state import InTurn, at_once
from genai_server.text.answers.answer_text import AnswerParser, PlainParser
from genai_server.text.answers.dialect import Dialect
from genai_server.text.answers.reasoning import ReasoningState
from genai_server.text.codec import TextCodec
from genai_server.text.prompts.prompt import CONTINUE
from genai_server.workers.tasks import Requester

# Cached specs of one model. A grammar has at most 262,144 characters (`LONGEST_GRAMMAR`).
_MAX_CACHED = 64
# The fields that determine a grammar.
_FIELDS = {"tools", "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs"}


@dataclass(frozen=True)
class OutputSpec:
    """What the answers to one request may contain and must match (the output spec). `generate` gives its grammar to the
    engine, and reads each answer with a parser of its own.
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
        """The grammar in one of llguidance's formats; None without a constraint."""
        return self.constraint.grammar if self.constraint is not None else None

    @property
    def needs_grammar(self) -> bool:
        """Whether an answer must fail if the grammar cannot be followed while the answer is generated."""
        return self.constraint is None or self.constraint.is_needed

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        """Special tokens that the parser must see in the decoded text."""
        formats = (self.dialect.tool_format if self.tools else None, self.dialect.reasoning)
        return tuple(token for one in formats if one is not None for token in one.shown_tokens)

    def parser(self) -> PlainParser:
        """A new parser for one answer."""
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
    """The output spec of a chat with this encoded prompt. The grammar has not been checked yet.

    With `best_effort`, as much as possible of schemas that are not strict is enforced. `loose` names the parts of the
    constraint that must be relaxed (see `Constraint.check`). Raises InvalidField.
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
    """Whether the answer to a chat with this prompt begins before, within or after reasoning."""
    reasoning = codec.dialect.reasoning
    if reasoning is None:
        return ReasoningState.BEFORE
    if (body.chat_template_kwargs or {}).get(CONTINUE) and isinstance(text := body.messages[-1].content, str):
        return reasoning.state_within(text)
    # Only the end matters; a marker is a few tokens at most.
    return reasoning.state_after(codec.decode(prompt[-16:]))


def plain_output_spec(body: SamplingFields) -> OutputSpec:
    """Return the form that the text of a completion must have, by the request's `structured_outputs`.

    Whether a grammar in it compiles is checked later, by a `GrammarChecker`. Raises InvalidField if the fields of
    `structured_outputs` do not fit together.
    """
    return OutputSpec(constraint=structure(body.structured_outputs))


class CheckedSpecs:
    """Builds the output specs of chats, checks that their grammars compile, and caches the specs for each API key. An
    API process has one. For use by the event loop's thread only.

    An agent sends the same tools with each request, and building a grammar from them is slow.
    """

    def __init__(self, grammars: GrammarChecker, *, best_effort: bool) -> None:
        self._grammars = grammars
        # Whether to enforce as much as possible of schemas that are not strict.
        self._best_effort = best_effort
        # Specs by digest.
        self._cached: WeakKeyDictionary[TextCodec, SaltedCache[OutputSpec]] = WeakKeyDictionary()

    async def of(
        self, body: ChatParameters, codec: TextCodec, prompt: list[int], requester: Requester, in_turn: InTurn = at_once
    ) -> OutputSpec:
        """The output spec of a chat, whose encoded prompt is `prompt`, with a grammar that compiles.

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
        self, body: ChatParameters, codec: TextCodec, prompt: list[int], requester: Requester, in_turn: InTurn
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
    """Digest of the body's fields and the reasoning state that determine a chat's output spec."""
    # Pydantic's JSON would turn NaN into null.
    fields = json.dumps(body.model_dump(include=_FIELDS), default=str)
    return hashlib.sha256(f"{reasoning_state(body, codec, prompt)}{fields}".encode()).digest()


def offered_tools(body: ChatParameters, codec: TextCodec) -> list[AnyTool]:
    """The tools that an answer may call. Raises InvalidField if the model does not support tools."""
    return _supported([] if body.tool_choice == "none" else body.tools or [], codec)


def listed_tools(body: ChatParameters, codec: TextCodec) -> list[AnyTool]:
    """The tools that the chat template puts into the prompt. Raises InvalidField if tools are not supported."""
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
