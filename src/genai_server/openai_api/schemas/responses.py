"""Bodies of OpenAI's Responses API (https://platform.openai.com/docs/api-reference/responses)."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from genai_server.openai_api.schemas.base import (
    NonEmptyText,
    Text,
    Wire,
    WithoutEffect,
    elements,
    field_error,
    members,
    missing_error,
)
from genai_server.openai_api.schemas.chat import MOST_TOOLS, FunctionName, ReasoningEffort
from genai_server.openai_api.schemas.response_items import APPLY_PATCH, Input, check_full_name, full_name
from genai_server.openai_api.schemas.sampling import GenerationFields
from genai_server.quoted_values import quoted

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    # Of tools and media that no answer here has.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
    members(16),
]


class FunctionTool(Wire):
    """A function that the model may call; `parameters` is a JSON schema."""

    type: Literal["function"]
    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(
        None, description="Whether calls fit all of the schema, or as far as it can be followed."
    )
    namespace: FunctionName | None = Field(None, description="Calls of the function have it, too.")
    namespace_description: Text | None = Field(None, description="Precedes the function's own description.")

    @model_validator(mode="after")
    def _has_a_name_that_fits(self) -> Self:
        check_full_name(self.name, self.namespace)
        return self


class ToolGrammar(Wire):
    """What the input of a custom tool must be."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: NonEmptyText | None = None

    @model_validator(mode="after")
    def _has_a_grammar(self) -> Self:
        for field in ("syntax", "definition"):
            is_given = getattr(self, field) is not None
            if self.type == "grammar" and not is_given:
                raise missing_error(field, "with type grammar")
            if self.type != "grammar" and is_given:
                raise field_error(field, "is only allowed with type grammar")
        return self


class CustomTool(Wire):
    """A tool that the model calls with a text."""

    type: Literal["custom"]
    name: FunctionName
    description: Text | None = None
    format: ToolGrammar | None = Field(None, description="Any text, if left out.")

    @property
    def namespace(self) -> None:
        """It has none."""
        return


class NamedApplyPatch(Wire):
    """The tool apply_patch of `tools`."""

    type: Literal["apply_patch"]

    @property
    def name(self) -> str:
        """What the model calls it."""
        return APPLY_PATCH

    @property
    def namespace(self) -> None:
        """It has none."""
        return


class ApplyPatchTool(NamedApplyPatch):
    """OpenAI's tool with which the model creates, updates and deletes files; the client applies its patches."""

    allowed_callers: Annotated[list[Literal["direct"]], elements(8)] | None = None


class NamedCustom(Wire):
    """A custom tool of `tools`, by its name."""

    type: Literal["custom"]
    name: FunctionName

    @property
    def namespace(self) -> None:
        """It has none."""
        return


class NamedResponseFunction(Wire):
    """A function of `tools`, by its name; where several namespaces have one of this name, also by its namespace."""

    type: Literal["function"]
    name: FunctionName
    namespace: FunctionName | None = None


ChosenTool = NamedResponseFunction | NamedCustom | NamedApplyPatch


class AllowedResponseTools(Wire):
    """The functions that the model may, or must, call now, among those in `tools`; it is told of no others."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Annotated[NamedResponseFunction | NamedCustom | NamedApplyPatch, Field(discriminator="type")]],
        elements(MOST_TOOLS, least=1),
    ]


class TextFormat(Wire):
    """What the answer must be; it fits a schema that is not `strict` as far as that can be followed."""

    type: Literal["text", "json_object", "json_schema"]
    name: NonEmptyText | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: Text | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        for field, alias in (("name", "name"), ("schema_", "schema")):
            given = getattr(self, field) is not None
            if self.type == "json_schema" and not given:
                raise missing_error(alias, "with type json_schema")
            if self.type != "json_schema" and given:
                raise field_error(alias, "is only allowed with type json_schema")
        if self.type != "json_schema" and (self.description is not None or self.strict is not None):
            raise field_error("type", "must be json_schema where there is a description or strict")
        return self


class TextConfig(Wire):
    """How the answer is written."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = Field(None, description="Nothing but OpenAI's default.")


class ReasoningConfig(Wire):
    """How the model thinks."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto"] | None = Field(None, description="Reasoning is given as it is, without a summary.")
    generate_summary: Literal["auto"] | None = Field(None, description="OpenAI's older name of summary.")
    context: Literal["auto"] | None = Field(None, description="The chat template decides which reasoning it repeats.")
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(Wire):
    """OpenAI's options of this stream."""

    include_obfuscation: bool | None = Field(None, description="Has no effect here: nothing is padded.")


def _type_of(given: Any) -> Any:
    """What a tool calls itself; None for what is no tool."""
    kind = given.get("type") if isinstance(given, dict) else getattr(given, "type", None)
    return kind if isinstance(kind, str) else None


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[ApplyPatchTool, Tag("apply_patch")],
    Discriminator(
        _type_of,
        custom_error_type="tool",
        custom_error_message="must be a tool of type function, custom or apply_patch",
    ),
]


class ConversationId(Wire):
    """A conversation that is stored."""

    id: NonEmptyText


class ResponsesRequest(GenerationFields):
    """Body of POST /v1/responses."""

    input: Input
    instructions: Text | None = Field(None, description="A system message before all others, for this response only.")
    previous_response_id: NonEmptyText | None = Field(None, description="A response that is kept: go on from it.")
    max_output_tokens: int | None = Field(
        None, ge=1, description="Most tokens of the answer; all that fit if left out."
    )
    tools: Annotated[list[ResponseTool], elements(MOST_TOOLS)] | None = None
    tool_choice: (
        Literal["none", "auto", "required"]
        | NamedResponseFunction
        | NamedCustom
        | NamedApplyPatch
        | AllowedResponseTools
        | None
    ) = None
    parallel_tool_calls: bool | None = Field(None, description="Whether one answer may call several tools.")
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: Annotated[list[Include], elements(64)] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20, description=f"Above 0 only with {LOGPROBS} in include.")
    metadata: Metadata | None = Field(None, description="Is given back.")
    store: bool | None = Field(None, description="Keep the response for later requests; true if left out.")
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = Field(None, description="Only with stream: true.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="More variables for the chat template.")
    include_metrics: bool | None = Field(None, description="The metrics of /v1/chat in the response, once complete.")
    max_tool_calls: int | None = Field(None, ge=1, description="Of OpenAI's own tools, of which there are none here.")
    background: bool | None = Field(None, description="Answer at once, and go on without the client.")
    conversation: NonEmptyText | ConversationId | None = Field(
        None, description="A conversation to go on from, to which input and output are added."
    )
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="auto leaves out the oldest turns of what is too long."
    )
    # OpenAI's that this server cannot honour: nothing but null.
    context_management: None = None
    prompt: None = None
    max_tokens: None = Field(None, description="Here it is max_output_tokens.")

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.top_logprobs and LOGPROBS not in (self.include or []):
            raise field_error("top_logprobs", f"is only allowed with include: [{quoted(LOGPROBS)}]")
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "is only allowed with stream: true")
        if self.background and self.store is False:
            raise field_error("background", "is only allowed with store: true")
        if self.conversation is not None and self.previous_response_id is not None:
            raise field_error("conversation", "cannot be given beside previous_response_id")
        if self.tool_choice not in (None, "none", "auto"):
            self._check_tool_choice()
        return self

    def _check_tool_choice(self) -> None:
        if not self.tools:
            raise field_error("tool_choice", "is only allowed with tools")
        self.chosen_names()

    @property
    def conversation_id(self) -> str | None:
        """The id of `conversation`."""
        given = self.conversation
        return given.id if isinstance(given, ConversationId) else given

    def chosen_names(self) -> list[str]:
        """What the model calls each function that `tool_choice` names. Raises if one of them is not one of `tools`."""
        choice = self.tool_choice
        chosen: Sequence[ChosenTool] = [choice] if isinstance(choice, ChosenTool) else []
        if isinstance(choice, AllowedResponseTools):
            chosen = choice.tools
        namespaces: dict[tuple[str, str], set[str | None]] = defaultdict(set)
        for tool in self.tools or []:
            namespaces[tool.type, tool.name].add(tool.namespace)
        return [_full_name(one, namespaces[one.type, one.name]) for one in chosen]


def _full_name(chosen: ChosenTool, namespaces: set[str | None]) -> str:
    found = namespaces & {chosen.namespace} if chosen.namespace else namespaces
    if not found:
        raise field_error("tool_choice", f"names the {_kind(chosen)} {quoted(chosen.name)}, which is not among tools")
    if len(found) > 1:
        rule = f"names the function {quoted(chosen.name)}, and {len(found)} of tools have this name: give its namespace"
        raise field_error("tool_choice", rule)
    return full_name(chosen.name, *found)


def _kind(chosen: ChosenTool) -> str:
    return {"function": "function", "custom": "custom tool", "apply_patch": "tool"}[chosen.type]


class CompactRequest(WithoutEffect):
    """Body of POST /v1/responses/compact."""

    model: NonEmptyText
    input: Input | None = None
    instructions: Text | None = Field(None, description="A system message before all others.")
    previous_response_id: NonEmptyText | None = Field(None, description="A response that is kept: it comes first.")

    @model_validator(mode="after")
    def _has_something(self) -> Self:
        if self.input is None and self.previous_response_id is None:
            raise missing_error("input", "without previous_response_id")
        return self


class InputTokens(BaseModel):
    """Answer of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class RetrieveParameters(BaseModel):
    """Query of GET /v1/responses/{id}."""

    model_config = ConfigDict(extra="forbid")

    stream: bool = Field(False, description="Only of a response with background: true and stream: true.")
    starting_after: int | None = Field(None, ge=0, description="Stream the events behind the one with this number.")
    include_obfuscation: bool | None = Field(None, description="Has no effect here: nothing is padded.")


class InputItemsParameters(BaseModel):
    """Query of GET /v1/responses/{id}/input_items, and of the items of a conversation."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
    after: str | None = Field(None, description="The id of the last item of the page before.")
    include: list[Include] | None = Field(None, alias="include[]", description="Adds nothing: items are whole.")
