"""The output spec of a request: which tools its answers may call, what they must fit, and how they are parsed."""

from collections import Counter
from dataclasses import dataclass, field

from genai_server.api.generation.constraint import Constraint, chat_constraint, structure
from genai_server.errors import InvalidField
from genai_server.openai_api.schemas.chat import ChatParameters, Tool
from genai_server.openai_api.schemas.sampling import SamplingFields
from genai_server.quoted import quoted
from genai_server.text.answers.answer_parser import AnswerParser
from genai_server.text.answers.answer_text import Parser, PlainParser
from genai_server.text.answers.dialect import Dialect
from genai_server.text.codec import TextCodec


@dataclass(frozen=True)
class OutputSpec:
    """What the answers may and must be."""

    # How the model writes reasoning and tool calls.
    dialect: Dialect = Dialect()
    # The tools that an answer may call.
    tool_names: list[str] = field(default_factory=list)
    # Most tool calls of an answer; None for any number.
    most_calls: int | None = None
    # What an answer must fit, if anything.
    constraint: Constraint | None = None
    # Whether the prompt ends within reasoning.
    starts_in_reasoning: bool = False

    @property
    def grammar(self) -> str | None:
        """What the answer must fit, as a grammar of llguidance; None without a constraint."""
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


def offered_tools(body: ChatParameters, codec: TextCodec) -> list[Tool]:
    """The tools for the chat template. Raises InvalidField if the model cannot be given tools."""
    if not body.tools or body.tool_choice == "none":
        return []
    if not codec.takes_tools or codec.dialect.tool_format is None:
        raise InvalidField(
            "tools cannot be used: the model's chat template knows none, or none in a format that this server knows "
            "(GENAI_TOOL_PARSER names one)",
            param="tools",
        )
    names = Counter(tool.function.name for tool in body.tools)
    if twice := [name for name, times in names.items() if times > 1]:
        raise InvalidField(
            f"tools must not have two functions of one name, given {quoted(twice[0])} twice", param="tools"
        )
    return body.tools


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
