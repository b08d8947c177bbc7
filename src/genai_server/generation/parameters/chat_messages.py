"""The body of a chat request in OpenAI's format, as pydantic models: messages with text, images and audio, tools and
their calls, and the answer's format. `ChatParameters` has all fields of a chat; requests of other APIs are translated
to it. Sampling parameters are in sampling_parameters.py.

A custom tool is one that a model calls with a text. For the model, custom tools are functions whose only argument is
the text; `function_of`, `arguments_of` and `text_of` convert them.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, PrivateAttr, Tag, model_validator

from genai_server.errors import quoted
from genai_server.generation.parameters.base import (
    NonEmptyText,
    StrictModel,
    TaggedUnion,
    Text,
    check_with_type,
    elements,
    field_error,
    missing_error,
)
from genai_server.generation.parameters.sampling_parameters import MAX_CHOICES, GenerationFields
from genai_server.http.json_response import JsonObject

_INPUT = "input"
# Schema keyword for a text that matches a Lark grammar, handled by text/grammars/lark.py.
_LARK = "x-lark"
_BEGINNING = re.compile(rf'\s*\{{\s*"{_INPUT}"\s*:\s*"')
_CHARACTERS = re.compile(
    r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)


def function_of(
    name: str, description: str | None, syntax: Literal["lark", "regex"] | None, definition: str | None
) -> JsonObject:
    """Return the function, in OpenAI's format, that represents a custom tool: a function whose only argument is the
    text for the tool. If `syntax` is given, the text must match `definition`, a Lark grammar or a regular expression.
    """
    text: JsonObject = {"type": "string"}
    if syntax == "regex":
        text["pattern"] = f"^(?:{definition})$"
    elif syntax == "lark":
        # Functions have no field for a grammar, so it is placed in the schema.
        text[_LARK] = definition
    return {
        "name": name,
        **({} if description is None else {"description": description}),
        "parameters": {"type": "object", "properties": {_INPUT: text}, "required": [_INPUT]},
        "strict": True,
    }


def arguments_of(text: str) -> str:
    """Return the JSON arguments with which the function that represents a custom tool is called to pass it `text`."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def text_of(arguments: str) -> str:
    """Return the text that a model passes to a custom tool. `arguments` are the JSON arguments of the call, which may
    be cut off. Arguments in another format are themselves the text.
    """
    text = CustomText()
    text.feed(arguments)
    text.finish()
    return text.text


class CustomText:
    """Extracts the text for a custom tool from the JSON arguments of a call while they arrive in pieces. Each call has
    an object of its own: `feed` takes the pieces, and `finish` is called after the last one.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        # The arguments whose text has not been returned, because more may have to come for it.
        self._pending = ""
        # Whether the text itself has begun.
        self._has_begun = False

    @property
    def text(self) -> str:
        """The text that `feed` and `finish` have returned up to now."""
        return "".join(self._texts)

    def feed(self, arguments: str) -> str:
        """Add a piece of the call's JSON arguments. Returns what the text goes on with, which may be empty."""
        self._pending += arguments
        if not self._has_begun:
            beginning = _BEGINNING.match(self._pending)
            if beginning is None:
                return ""
            self._has_begun = True
            self._pending = self._pending[beginning.end() :]
        match = _CHARACTERS.match(self._pending)
        assert match is not None
        self._pending = self._pending[match.end() :]
        return self._returned(json.loads(f'"{match[0]}"'))

    def finish(self) -> str:
        """Return what is left of the text when all arguments have arrived. This is empty, unless the arguments are in
        another format; then they are themselves the text.
        """
        return "" if self._has_begun else self._returned(self._pending)

    def _returned(self, text: str) -> str:
        self._texts.append(text)
        return text


MAX_NAME_LENGTH = 128
FunctionName = Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_.-]{{1,{MAX_NAME_LENGTH}}}$")]
# Enough for a long conversation with tools. A template takes a few microseconds for each message.
MAX_MESSAGES = 4096
MAX_TOOLS = 512
# Content parts, or tool calls, of one message.
MAX_PARTS = 4096
ImageDetail = Literal["auto", "low", "high", "original"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


# Tokens; -1 stands for no limit.
ThoughtBudget = Annotated[int, Field(ge=-1, le=2**31 - 1)]
EndOfThought = Annotated[str, Field(min_length=0, max_length=1024)]


class TextPart(StrictModel):
    """A text as one part of a message's content."""

    type: Literal["text"]
    text: Text
    prompt_cache_breakpoint: Any = Field(None, description="Accepted, but has no effect.")


TextParts = Annotated[list[TextPart], elements(MAX_PARTS)]


class ImageUrl(StrictModel):
    """The URL of an image, and the level of detail at which the model reads the image."""

    url: NonEmptyText = Field(
        description="A data URL, such as data:image/png;base64,…, or the address of an image on an allowed host."
    )
    detail: ImageDetail | None = Field(
        None, description="low: reduce the image to at most 512 pixels on a side. Others take it as the model does."
    )


class ImagePart(StrictModel):
    """An image as one part of a message's content, for models that take images."""

    type: Literal["image_url"]
    image_url: ImageUrl
    prompt_cache_breakpoint: Any = Field(None, description="Accepted, but has no effect.")


class InputAudio(StrictModel):
    """The audio file of an audio part: its data in base64 and its format."""

    data: NonEmptyText = Field(description="The file in base64.")
    format: Literal["wav", "mp3", "flac", "m4a", "mp4", "ogg", "opus", "webm"] = Field(
        description="The file's format, as OpenAI's API requires it; its content decides."
    )


class AudioPart(StrictModel):
    """Audio as one part of a message's content, for models that take audio."""

    type: Literal["input_audio"]
    input_audio: InputAudio
    prompt_cache_breakpoint: Any = Field(None, description="Accepted, but has no effect.")


ContentPart = Annotated[TextPart | ImagePart | AudioPart, TaggedUnion("part")]
ContentParts = Annotated[list[ContentPart], elements(MAX_PARTS)]


class CalledFunction(StrictModel):
    """The function that a tool call calls, and its arguments, as a model wrote them. `arguments` is the text of a JSON
    object, unless the call was cut off or is wrong.
    """

    name: NonEmptyText
    arguments: Text


class ToolCall(StrictModel):
    """A call of a function, made by the assistant in an earlier answer."""

    id: NonEmptyText
    type: Literal["function"] = "function"
    function: CalledFunction

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default_type(cls, value: Any) -> Any:
        return {**value, "type": "function"} if isinstance(value, dict) and value.get("type") is None else value


class CalledCustomTool(StrictModel):
    """The custom tool that a call names, and the text with which a model calls it."""

    name: NonEmptyText
    input: Text


class CustomToolCall(StrictModel):
    """A call of a custom tool, made by the assistant in an earlier answer. The tool is called with a text instead of
    arguments.
    """

    id: NonEmptyText
    type: Literal["custom"]
    custom: CalledCustomTool

    @property
    def function(self) -> CalledFunction:
        """The call as the model wrote it: a call of the function that represents the custom tool, with the text as its
        argument.
        """
        return CalledFunction(name=self.custom.name, arguments=arguments_of(self.custom.input))


def _type_of_call(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "type=custom" if kind == "custom" else "type=function"


AnyToolCall = Annotated[
    Annotated[ToolCall, Tag("type=function")] | Annotated[CustomToolCall, Tag("type=custom")],
    Discriminator(_type_of_call),
]
ToolCalls = Annotated[list[AnyToolCall], elements(MAX_PARTS)]


_ROLE_OF_FIELD = {
    "tool_calls": "assistant",
    "function_call": "assistant",
    "reasoning_content": "assistant",
    "reasoning": "assistant",
    "tool_call_id": "tool",
}


class ChatMessage(StrictModel):
    """One message of the conversation: its role, its content, which is a text or a list of parts, and for the assistant
    its tool calls and reasoning. Fields that do not fit the role are refused.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | ContentParts | None = None
    name: NonEmptyText | None = None
    tool_calls: ToolCalls | None = Field(None, description="The assistant's tool calls.")
    tool_call_id: NonEmptyText | None = Field(None, description="In a tool's result: id of the call it answers.")
    reasoning_content: Text | None = Field(None, description="The assistant's reasoning.")
    reasoning: Text | None = Field(None, description="Another name for reasoning_content.")
    refusal: None = None
    annotations: Annotated[list[Any], elements(0)] | None = None
    audio: None = None
    function_call: CalledFunction | None = Field(
        None, description="The assistant's function call in OpenAI's older format, without an id."
    )
    provider_specific_fields: Any = Field(None, description="Added by litellm; ignored.")

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if self.content is None and self.role not in ("assistant", "tool", "function"):
            raise missing_error("content", f"with role {self.role}")
        for field, role in _ROLE_OF_FIELD.items():
            if getattr(self, field) is not None and self.role != role:
                raise field_error(field, f"is only allowed with role {role}; given with role {self.role}")
        if self.tool_calls and self.function_call is not None:
            raise field_error("function_call", "cannot be combined with tool_calls")
        if self.role == "tool" and self.tool_call_id is None:
            raise missing_error("tool_call_id", "with role tool")
        if self.role == "function" and self.name is None:
            raise missing_error("name", "with role function")
        return self

    @property
    def media(self) -> Iterator[tuple[int, ImagePart | AudioPart]]:
        """The images and audio parts of the message's content, each with its index in the content."""
        for index, part in enumerate(self.content if isinstance(self.content, list) else ()):
            if not isinstance(part, TextPart):
                yield index, part

    def drop_media(self) -> None:
        """Replace the data of the images and audio in the message by an empty text, in order to free memory once they
        have been read.
        """
        for _, part in self.media:
            if isinstance(part, ImagePart):
                part.image_url.url = ""
            else:
                part.input_audio.data = ""

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates expect it: a dictionary without absent fields, except `content`.

        An absent `content` is None next to tool calls and "" otherwise. An image is a part of type image, and audio one
        of type audio, without the data. A call of a custom tool is a function call.
        """
        fields = self.model_dump(exclude_none=True, exclude={"annotations", "provider_specific_fields", "reasoning"})
        if isinstance(self.content, list):
            fields["content"] = [_for_template(part) for part in self.content]
        if self.reasoning is not None:
            fields.setdefault("reasoning_content", self.reasoning)
        for index, call in enumerate(self.tool_calls or ()):
            if isinstance(call, CustomToolCall):
                fields["tool_calls"][index] = ToolCall(id=call.id, function=call.function).model_dump()
        return {"content": None if self.tool_calls else "", **fields}


def _for_template(part: TextPart | ImagePart | AudioPart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "image" if isinstance(part, ImagePart) else "audio"}


class Function(StrictModel):
    """A function the model may call: its name, what it does, and a JSON schema of its arguments (`parameters`)."""

    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(
        None,
        description="true: follow the schema exactly, or refuse the request. false: enforce as much of it as possible.",
    )


class Tool(StrictModel):
    """A tool of type function: a function the model may call with JSON arguments."""

    type: Literal["function"]
    function: Function


class GrammarDefinition(StrictModel):
    """A grammar that the input of a custom tool must match: a Lark grammar or a regular expression."""

    syntax: Literal["lark", "regex"]
    definition: NonEmptyText


class CustomToolFormat(StrictModel):
    """The format of a custom tool's input: any text, or a text that matches `grammar`."""

    type: Literal["text", "grammar"]
    grammar: GrammarDefinition | None = None

    @model_validator(mode="after")
    def _has_a_grammar(self) -> Self:
        check_with_type(self.type, "grammar", grammar=self.grammar)
        return self


class CustomToolDefinition(StrictModel):
    """A custom tool, which is called with a text: its name, what it does, and the format of the text."""

    name: FunctionName
    description: Text | None = None
    format: CustomToolFormat | None = Field(None, description="Format of the tool's input; by default any text.")


class CustomChatTool(StrictModel):
    """A tool of type custom: one that the model calls with a text instead of JSON arguments."""

    type: Literal["custom"]
    custom: CustomToolDefinition

    @property
    def function(self) -> Function:
        """The function that represents the custom tool for the model; its only argument is the text."""
        tool = self.custom
        grammar = None if tool.format is None else tool.format.grammar
        form = (None, None) if grammar is None else (grammar.syntax, grammar.definition)
        return Function.model_validate(function_of(tool.name, tool.description, *form))


AnyTool = Annotated[Tool | CustomChatTool, TaggedUnion("tool")]


def tool_for_template(tool: Tool | CustomChatTool) -> dict[str, Any]:
    """Return a tool as chat templates expect it: a function in OpenAI's format without absent fields. A custom tool
    becomes the function that represents it.
    """
    return {"type": "function", "function": tool.function.model_dump(exclude_none=True)}


class NamedFunction(StrictModel):
    name: FunctionName


class NamedTool(StrictModel):
    """A `tool_choice` that names the one function that the answer must call."""

    type: Literal["function"]
    function: NamedFunction


class NamedCustomTool(StrictModel):
    """A `tool_choice` that names the one custom tool that the answer must call."""

    type: Literal["custom"]
    custom: NamedFunction

    @property
    def function(self) -> NamedFunction:
        """The name of the function that represents the custom tool. It equals the tool's own name."""
        return self.custom


ChosenTool = NamedTool | NamedCustomTool


class AllowedNames(StrictModel):
    """The names of the allowed tools, a subset of `tools`. `mode` is "required" if the answer must call one of them,
    and "auto" if it may.
    """

    mode: Literal["auto", "required"]
    tools: Annotated[list[Annotated[ChosenTool, TaggedUnion("tool")]], elements(MAX_TOOLS, min_length=1)]


class AllowedTools(StrictModel):
    """A `tool_choice` that names the subset of `tools` that the model may, or must, call. Other tools are not part of
    the prompt.
    """

    type: Literal["allowed_tools"]
    allowed_tools: AllowedNames


class JsonSchema(StrictModel):
    """The JSON schema that the answer must match. Without `strict`, as much of the schema as possible is enforced."""

    name: NonEmptyText
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """The format of the answer: any text, any JSON object, or JSON that matches a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="llama.cpp's form: the schema of an answer of type json_object."
    )

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        check_with_type(self.type, "json_schema", json_schema=self.json_schema)
        if self.schema_ is not None and self.type != "json_object":
            raise field_error("schema", "is only allowed with type json_object")
        return self

    @property
    def answer_schema(self) -> tuple[str, dict[str, Any]] | None:
        """The JSON schema of the answer, preceded by the path of the field that has it; None if the format has no
        schema.
        """
        if self.schema_ is not None:
            return "schema", self.schema_
        if self.json_schema is None or self.json_schema.schema_ is None:
            return None
        return "json_schema.schema", self.json_schema.schema_


def _with_ids(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Convert function calls in OpenAI's older format, and their results, to tool calls. Changes the messages and
    returns them. A pydantic validator.

    The older calls have no ids, so each gets a new one, and a result gets the id of the call before it.
    """
    id = ""
    for index, message in enumerate(messages):
        if message.function_call is not None:
            id = f"call{index:05}"  # Mistral's templates require ids of this length
            message.tool_calls, message.function_call = [ToolCall(id=id, function=message.function_call)], None
        elif message.role == "function":
            message.role, message.tool_call_id = "tool", id or f"call{index:05}"
    return messages


Messages = Annotated[list[ChatMessage], elements(MAX_MESSAGES, min_length=1), AfterValidator(_with_ids)]
Tools = Annotated[list[AnyTool], elements(MAX_TOOLS)]


class Prediction(StrictModel):
    """A text that the answer is expected to repeat in large part, such as a file that is to be edited. The answer is
    then generated faster.
    """

    type: Literal["content"]
    content: Text | TextParts

    @property
    def text(self) -> str:
        """The expected text, of which the request may have sent several parts."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatParameters(GenerationFields):
    """All fields of a chat request that affect its answers: messages, tools, the answer's format, reasoning and
    sampling. The bodies of all chat endpoints extend it, or are translated to it.
    """

    messages: Messages
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Number of answers to generate.")
    logprobs: bool | None = Field(None, description="Return the log probability of each token of the answer.")
    top_logprobs: int | None = Field(
        None, ge=0, le=20, description="Also return the N most likely tokens at each position."
    )
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = Field(None, description="Whether an answer may call several tools.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Additional variables for the chat template.")
    reasoning_effort: ReasoningEffort | None = None
    thinking_token_budget: ThoughtBudget | None = Field(
        None, description="Maximum number of tokens of the answer's reasoning: 0 for none, -1 for no limit."
    )
    reasoning_budget_message: EndOfThought | None = Field(
        None, description="Text at the end of reasoning whose tokens are used up."
    )
    prediction: Prediction | None = Field(
        None, description="Expected output; text that repeats it is generated faster."
    )
    max_completion_tokens: int | None = Field(None, ge=1, description="OpenAI's newer name for max_tokens.")
    store: Any = Field(None, description="No effect: chat completions are not stored.")
    # OpenAI's fields that this server does not support: only null is accepted.
    audio: None = None
    modalities: Annotated[list[Literal["text"]], elements(8)] | None = None
    verbosity: Literal["medium"] | None = Field(None, description="Only OpenAI's default is accepted.")
    web_search_options: None = None
    # The tools at the beginning of the prompt, if these are not those that an answer may call.
    _listed_tools: Sequence[Tool | CustomChatTool] | None = PrivateAttr(default=None)
    _effort_is_budget: bool = PrivateAttr(default=False)

    @property
    def listed_tools(self) -> Sequence[Tool | CustomChatTool]:
        """The tools that the chat template puts at the beginning of the prompt.

        These are the tools that an answer may call, unless messages introduce some of them later, or withdraw one.
        """
        return (self.tools or []) if self._listed_tools is None else self._listed_tools

    def list_tools(self, tools: Sequence[Tool | CustomChatTool]) -> None:
        """Set the tools that the chat template puts at the beginning of the prompt, if they are not those that an
        answer may call.
        """
        self._listed_tools = tools

    @property
    def effort_is_budget(self) -> bool:
        """Whether `reasoning_effort` stands for a token budget of reasoning if the chat template does not read efforts.
        False unless `take_effort_as_budget` was called.
        """
        return self._effort_is_budget

    def take_effort_as_budget(self) -> None:
        """From now on, let `reasoning_effort` stand for a token budget of reasoning if the chat template does not read
        efforts.
        """
        self._effort_is_budget = True

    @property
    def custom_names(self) -> frozenset[str]:
        """The names of the custom tools that an answer may call."""
        return frozenset(tool.custom.name for tool in self.tools or () if isinstance(tool, CustomChatTool))

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise field_error("top_logprobs", "is only allowed with logprobs: true")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise field_error("tool_choice", "is only allowed with tools")
        if isinstance(self.tool_choice, AllowedTools):
            self._keep_allowed(self.tool_choice.allowed_tools)
        return self

    def _keep_allowed(self, allowed: AllowedNames) -> None:
        """Remove the tools that are not among `allowed`, the tools that `tool_choice` allows, and make `tool_choice`
        "auto" or "required". Raises a validation error if a tool is allowed that is not in `tools`.
        """
        names = {tool.function.name for tool in allowed.tools}
        offered = {tool.function.name for tool in self.tools or []}
        if unknown := sorted(names - offered):
            raise field_error("tool_choice", f"allows the function {quoted(unknown[0])}, which is not in tools")
        self.tools = [tool for tool in self.tools or [] if tool.function.name in names]
        self.tool_choice = allowed.mode
