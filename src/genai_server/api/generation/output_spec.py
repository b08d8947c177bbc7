"""The output spec of a request: which tools its answers may call, what they must match, and how they are parsed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from genai_server.api.generation.constraint import ChatConstraint, Constraint, structure
from genai_server.api.generation.prompts import offered_tools
from genai_server.openai_api.schemas.chat import ChatParameters
from genai_server.openai_api.schemas.sampling import SamplingFields
from genai_server.text.answers.answer_parser import AnswerParser
from genai_server.text.answers.answer_text import Parser, PlainParser
from genai_server.text.answers.dialect import Dialect
from genai_server.text.codec import TextCodec


@dataclass(frozen=True)
class OutputSpec:
    """What the answers of a request may and must be."""

    # How the model writes reasoning and tool calls.
    dialect: Dialect = Dialect()
    # The functions that an answer may call, with the JSON schemas of their arguments.
    tools: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    # Most tool calls of an answer; None for any number.
    most_calls: int | None = None
    # The grammar that an answer must match, if there is one.
    constraint: Constraint | None = None
    # Whether the prompt ends within reasoning.
    starts_in_reasoning: bool = False
    # Fields with the keywords of their schemas that answers are not held to.
    left_out: tuple[str, ...] = ()
    # The parts of the constraint that ask for as little as they can.
    loose: frozenset[str] = frozenset()

    @property
    def grammar(self) -> str | None:
        """The grammar in one of llguidance's forms; None without a constraint."""
        return self.constraint.grammar if self.constraint is not None else None

    @property
    def needs_grammar(self) -> bool:
        """Whether an answer fails where its grammar cannot be followed."""
        return self.constraint is None or self.constraint.is_needed

    @property
    def shown_tokens(self) -> tuple[str, ...]:
        """Special tokens that the parser must see."""
        formats = (self.dialect.tool_format if self.tools else None, self.dialect.reasoning)
        return tuple(token for one in formats if one is not None for token in one.shown_tokens)

    def parser(self) -> Parser:
        """A parser for one answer."""
        if self.dialect.reasoning is None and not self.tools:
            return PlainParser()
        form = self.dialect.tool_format
        return AnswerParser(
            form,
            self.tools,
            reasoning=self.dialect.reasoning,
            starts_in_reasoning=self.starts_in_reasoning,
            new_id=form.new_id if form is not None else str,
        )


def chat_output_spec(
    body: ChatParameters,
    codec: TextCodec,
    prompt: list[int],
    *,
    best_effort: bool = False,
    loose: Collection[str] = (),
) -> OutputSpec:
    """The output spec of a chat with this encoded prompt; its grammar is not checked yet.

    With `best_effort` a schema that is not strict is followed as far as it can be, and `loose` names parts of the
    constraint (`Constraint.check`) that ask for as little as they can. Raises InvalidField.
    """
    dialect, tools = codec.dialect, offered_tools(body, codec)
    inside = starts_in_reasoning(codec, prompt)
    constraint = ChatConstraint(body, codec, best_effort=best_effort, loose=frozenset(loose))
    return OutputSpec(
        dialect,
        tools={tool.function.name: tool.function.parameters for tool in tools},
        most_calls=1 if body.parallel_tool_calls is False else None,
        constraint=constraint.build(tools, starts_inside=inside),
        starts_in_reasoning=inside,
        left_out=tuple(constraint.left_out),
        loose=constraint.loose,
    )


def starts_in_reasoning(codec: TextCodec, prompt: list[int]) -> bool:
    """Whether a chat's prompt ends within reasoning."""
    reasoning = codec.dialect.reasoning
    # Only the end matters; a marker is a few tokens at most.
    return reasoning is not None and reasoning.begins_inside(codec.decode(prompt[-16:]))


def plain_output_spec(body: SamplingFields) -> OutputSpec:
    """The output spec of a text completion; its grammar is not checked yet. Raises InvalidField."""
    return OutputSpec(constraint=structure(body.structured_outputs))
