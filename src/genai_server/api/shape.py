"""What a request asks its answers to be: which tools they may call, what they must fit, how they are read."""

import json
from dataclasses import dataclass, field
from typing import Any

from genai_server.errors import InvalidField
from genai_server.openai_api.schemas.chat import ChatParameters, NamedTool
from genai_server.openai_api.schemas.sampling import SamplingFields, StructuredOutputs
from genai_server.text import grammar
from genai_server.text.answer_parser import AnswerParser
from genai_server.text.answer_text import Parser, PlainParser
from genai_server.text.codec import TextCodec
from genai_server.text.dialect import Dialect
from genai_server.text.tool_formats import Tool


@dataclass(frozen=True)
class Shape:
    """The answer may call `tool_names`; `starts_in_reasoning` says that the prompt ends in the middle of it."""

    dialect: Dialect = Dialect()
    tool_names: list[str] = field(default_factory=list)
    most_calls: int | None = None
    grammar: str | None = None
    starts_in_reasoning: bool = False

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


def offered_tools(body: ChatParameters, codec: TextCodec) -> list[dict[str, Any]] | None:
    """The tools that the chat template is told of. Raises InvalidField if it cannot tell a model of tools."""
    if not body.tools or body.tool_choice == "none":
        return None
    if not codec.reads("tools") or codec.dialect.tool_format is None:
        raise InvalidField(
            "tools cannot be used: the model's chat template knows none, or none in a format that this server knows "
            "(GENAI_TOOL_PARSER names one)",
            param="tools",
        )
    return [tool.model_dump(exclude_none=True) for tool in body.tools]


def chat_shape(body: ChatParameters, codec: TextCodec, prompt: list[int]) -> Shape:
    """The shape of the answers to a rendered prompt. Raises InvalidField, also for what cannot be compiled."""
    dialect = codec.dialect
    tools = offered_tools(body, codec) or []
    # Only the end matters; a marker is a few tokens at most.
    inside = dialect.reasoning is not None and dialect.reasoning.begins_inside(codec.decode(prompt[-16:]))
    return Shape(
        dialect,
        tool_names=[tool["function"]["name"] for tool in tools],
        most_calls=1 if body.parallel_tool_calls is False else None,
        grammar=_chat_grammar(body, codec, starts_inside=inside),
        starts_in_reasoning=inside,
    )


def plain_shape(body: SamplingFields) -> Shape:
    """The shape of a text completion. Raises InvalidField for a grammar that cannot be compiled."""
    built = _structure(body.structured_outputs)
    if built is not None:
        grammar.validate(built, param="structured_outputs")
    return Shape(grammar=built)


def _chat_grammar(body: ChatParameters, codec: TextCodec, *, starts_inside: bool) -> str | None:
    """What the answer must fit, if anything, in the form of llguidance."""
    called, field = _forced_calls(body, codec), "tool_choice"
    wanted, source = _structure(body.structured_outputs), "structured_outputs"
    if wanted is not None and body.response_format is not None and body.response_format.type != "text":
        raise InvalidField("give either response_format or structured_outputs, not both", param="structured_outputs")
    if wanted is None:
        wanted, source = _response_format(body), "response_format"
    if called is not None and wanted is not None:
        raise InvalidField(f"{source} cannot be combined with a tool_choice that forces a call", param=source)
    built, field = (called, field) if called is not None else (wanted, source)
    if built is None:
        return None
    dialect = codec.dialect
    if called is None and body.tools and body.tool_choice != "none" and dialect.tool_format is not None:
        built = grammar.either(_calls(body, codec, None), built)
    if dialect.reasoning is not None:
        built = grammar.after_reasoning(
            built, dialect.reasoning, starts_inside=starts_inside, opaque_tokens=codec.opaque_tokens
        )
    grammar.validate(built, param=field)
    return built


def _forced_calls(body: ChatParameters, codec: TextCodec) -> str | None:
    """The grammar of the calls that the answer must consist of, if it must."""
    if isinstance(body.tool_choice, NamedTool):
        name = body.tool_choice.function.name
        if name not in [tool.function.name for tool in body.tools or []]:
            raise InvalidField(
                f"tool_choice names the function {name!r}, which is not among tools", param="tool_choice"
            )
        return _calls(body, codec, name)
    return _calls(body, codec, None) if body.tool_choice == "required" else None


def _calls(body: ChatParameters, codec: TextCodec, name: str | None) -> str:
    offered_tools(body, codec)
    form = codec.dialect.tool_format
    assert form is not None
    functions = [tool.function for tool in body.tools or [] if name in (None, tool.function.name)]
    return grammar.tool_calls(
        form,
        [Tool(function.name, function.parameters) for function in functions],
        parallel=name is None and body.parallel_tool_calls is not False,
        opaque_tokens=codec.opaque_tokens,
    )


def _response_format(body: ChatParameters) -> str | None:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        return grammar.json_object()
    return grammar.json_schema(wanted.json_schema.schema_)


def _structure(wanted: StructuredOutputs | None) -> str | None:
    if wanted is None:
        return None
    if wanted.regex is not None:
        return grammar.regex(wanted.regex)
    if wanted.choice is not None:
        return grammar.choice(wanted.choice)
    if wanted.grammar is not None:
        return grammar.lark(wanted.grammar)
    return grammar.json_schema(_schema(wanted.json_))


def _schema(given: Any) -> dict[str, Any]:
    """A schema may come as JSON text, too; `true` is any value, `false` none."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise InvalidField(
                f"structured_outputs.json is not JSON: {error}", param="structured_outputs.json"
            ) from None
    if isinstance(given, bool):
        given = {} if given else {"not": {}}
    if not isinstance(given, dict):
        raise InvalidField("structured_outputs.json must be a JSON schema, an object", param="structured_outputs.json")
    return given
