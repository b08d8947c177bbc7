"""Schemas of the request bodies and query parameters of OpenAI's Responses API, and of their fields except items and
tools (https://platform.openai.com/docs/api-reference/responses).

`ResponsesRequest` is the body that creates a response. Input items are in item_schemas.py, and tools in tools.py.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from genai_server.apis.responses.item_schemas import Input
from genai_server.apis.responses.tools import NamespacedTool, ResponseTool, ToolSearchTool, full_name
from genai_server.errors import quoted
from genai_server.generation.parameters.base import (
    Metadata,
    NonEmptyText,
    StrictModel,
    Text,
    WithoutEffect,
    check_with_type,
    elements,
    field_error,
    missing_error,
)
from genai_server.generation.parameters.chat_messages import MAX_TOOLS, FunctionName, ReasoningEffort, ThoughtBudget
from genai_server.generation.parameters.sampling_parameters import GenerationFields

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    # Accepted, but no answer of this server has such tools or media.
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class NamedTypedTool(StrictModel):
    """A value in `tool_choice` that selects one of OpenAI's own tools which the client runs, such as shell."""

    namespace: ClassVar[None] = None
    type: Literal["apply_patch", "shell", "local_shell", "tool_search"]

    @property
    def name(self) -> str:
        """Return the name that the tool has in the prompt, which is its type."""
        return self.type


class NamedCustom(StrictModel):
    """A value in `tool_choice` that selects a custom tool of the request by its name. The namespace is required only if
    several custom tools have this name.
    """

    type: Literal["custom"]
    name: FunctionName
    namespace: FunctionName | None = None


class NamedResponseFunction(StrictModel):
    """A value in `tool_choice` that selects a function of the request by its name. The namespace is required only if
    several functions have this name.
    """

    type: Literal["function"]
    name: FunctionName
    namespace: FunctionName | None = None


class NamedMcpTool(StrictModel):
    """A value of `tool_choice` with which the model must call a tool of the MCP tool server `server_label`: the tool
    `name`, or any tool of this server if there is no name.
    """

    type: Literal["mcp"]
    server_label: NonEmptyText
    name: NonEmptyText | None = None


ChosenTool = NamedResponseFunction | NamedCustom | NamedTypedTool


class AllowedResponseTools(StrictModel):
    """A value of `tool_choice` that restricts the model to some tools of the request. With the mode auto it may call
    them, with required it must call at least one. The prompt does not contain the other tools.
    """

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[Annotated[ChosenTool, Field(discriminator="type")]], elements(MAX_TOOLS, min_length=1)]


class TextFormat(StrictModel):
    """The format of the answer's text: any text, any JSON object, or JSON that matches `schema`. With `strict`, the
    schema is enforced exactly or the request is refused; otherwise as much of the schema as possible is enforced.
    """

    type: Literal["text", "json_object", "json_schema"]
    name: NonEmptyText | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: Text | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        check_with_type(self.type, "json_schema", name=self.name, schema=self.schema_)
        if self.type != "json_schema" and (self.description is not None or self.strict is not None):
            raise field_error("type", "must be json_schema if description or strict is given")
        return self


class TextConfig(StrictModel):
    """The field `text` of a request: the format of the answer's text. OpenAI's option `verbosity` has no effect."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = Field(None, description="Only OpenAI's default is accepted.")


class ReasoningConfig(StrictModel):
    """The field `reasoning` of a request: how much the model reasons (`effort`, `max_tokens`). OpenAI's other options
    are accepted only with their default values, because reasoning is always returned in full.
    """

    effort: ReasoningEffort | None = None
    summary: Literal["auto"] | None = Field(None, description="Reasoning is returned in full, never summarized.")
    generate_summary: Literal["auto"] | None = Field(None, description="OpenAI's older name for summary.")
    context: Literal["auto"] | None = Field(
        None, description="The chat template decides which reasoning stays in the prompt."
    )
    mode: Literal["standard"] | None = None
    max_tokens: ThoughtBudget | None = Field(
        None, description="Maximum number of tokens of the reasoning: 0 for none, -1 for no limit. Not OpenAI's."
    )


class ResponseStreamOptions(StrictModel):
    """The field `stream_options` of a request. It is accepted for OpenAI's clients and has no effect."""

    include_obfuscation: bool | None = Field(None, description="No effect: chunks are not padded.")


class ConversationId(StrictModel):
    """The object form of the field `conversation` of a request, which names a stored conversation by its id."""

    id: NonEmptyText


class ResponsesRequest(GenerationFields):
    """Body of POST /v1/responses, which creates a response, and of POST /v1/responses/input_tokens, which counts the
    tokens of its prompt: the input, the model, tools, sampling parameters, and how the response is returned and stored.
    """

    input: Input
    instructions: Text | None = Field(
        None, description="System message placed before all others, for this response only."
    )
    previous_response_id: NonEmptyText | None = Field(None, description="Id of a stored response to continue from.")
    max_output_tokens: int | None = Field(
        None, ge=1, description="Maximum number of tokens of the answer; by default all that fit."
    )
    tools: Annotated[list[ResponseTool], elements(MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | NamedMcpTool | AllowedResponseTools | None = None
    parallel_tool_calls: bool | None = Field(None, description="Whether an answer may call several tools.")
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: Annotated[list[Include], elements(64)] | None = None
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=20,
        description=f"Also return the N most likely tokens at each position; above 0 only with {LOGPROBS} in include.",
    )
    metadata: Metadata | None = Field(None, description="Returned unchanged.")
    store: bool | None = Field(None, description="Store the response for later requests; true by default.")
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = Field(None, description="Only allowed with stream: true.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Additional variables for the chat template.")
    include_metrics: bool | None = Field(None, description="Include the metrics of /v1/chat in the completed response.")
    max_tool_calls: int | None = Field(
        None, ge=1, description="Maximum number of calls that this server runs; it does not count those of the client."
    )
    background: bool | None = Field(None, description="Respond at once and generate in the background.")
    conversation: NonEmptyText | ConversationId | None = Field(
        None, description="A conversation to continue; input and output are appended to it."
    )
    truncation: Literal["auto", "disabled"] | None = Field(
        None, description="auto drops the oldest turns of a prompt that is too long."
    )
    # OpenAI's fields that this server does not support: only null is accepted.
    context_management: None = None
    prompt: None = None
    max_tokens: None = Field(None, description="Not supported; use max_output_tokens.")

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.top_logprobs and LOGPROBS not in (self.include or []):
            raise field_error("top_logprobs", f"is only allowed with include: [{quoted(LOGPROBS)}]")
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "is only allowed with stream: true")
        if self.background and self.store is False:
            raise field_error("background", "is only allowed with store: true")
        if self.conversation is not None and self.previous_response_id is not None:
            raise field_error("conversation", "cannot be combined with previous_response_id")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise field_error("tool_choice", "is only allowed with tools")
        self.chosen_names()
        if not self.searches_tools:
            for index, tool in enumerate(self.tools or []):
                if isinstance(tool, NamespacedTool) and tool.defer_loading:
                    rule = "is only allowed with a tool of type tool_search that the client executes"
                    raise field_error(f"tools[{index}].defer_loading", rule)
        return self

    @property
    def searches_tools(self) -> bool:
        """Return whether the request has the tool tool_search. The model then sees tools with `defer_loading` only
        after a tool search of the client has found them.
        """
        return any(isinstance(tool, ToolSearchTool) for tool in self.tools or [])

    @property
    def conversation_id(self) -> str | None:
        """Return the id of the stored conversation that the request continues, in whichever form it is given. None if
        the request continues no conversation.
        """
        conversation = self.conversation
        return conversation.id if isinstance(conversation, ConversationId) else conversation

    def chosen_names(self) -> list[str]:
        """Return the names of the tools that `tool_choice` selects, as they are in the prompt, that is with their
        namespaces. The list is empty if it selects no particular tools.

        Raises a validation error if a selected tool is not in `tools`, or if its name without a namespace is ambiguous.
        """
        choice = self.tool_choice
        chosen: Sequence[ChosenTool] = [choice] if isinstance(choice, ChosenTool) else []
        if isinstance(choice, AllowedResponseTools):
            chosen = choice.tools
        namespaces: dict[tuple[str, str], set[str | None]] = defaultdict(set)
        for tool in self.tools or []:
            if isinstance(tool, NamespacedTool):
                namespaces[tool.type, tool.name].add(tool.namespace)
            else:
                namespaces[tool.type, tool.full_name].add(None)
        return [_full_name(selected, namespaces[selected.type, selected.name]) for selected in chosen]


def _kind(chosen: ChosenTool) -> str:
    return {"function": "function", "custom": "custom tool"}.get(chosen.type, "tool")


def _full_name(chosen: ChosenTool, namespaces: set[str | None]) -> str:
    matches = namespaces & {chosen.namespace} if chosen.namespace else namespaces
    if not matches:
        raise field_error("tool_choice", f"names the {_kind(chosen)} {quoted(chosen.name)}, which is not in tools")
    if len(matches) > 1:
        num_tools = f"{len(matches)} tools have this name: add its namespace"
        rule = f"names the {_kind(chosen)} {quoted(chosen.name)}, but {num_tools}"
        raise field_error("tool_choice", rule)
    return full_name(chosen.name, *matches)


class CompactRequest(WithoutEffect):
    """Body of POST /v1/responses/compact, which shortens a conversation by a summary: the input, a stored response
    whose conversation comes before it, or both.
    """

    model: NonEmptyText
    input: Input | None = None
    instructions: Text | None = Field(None, description="System message placed before all others.")
    previous_response_id: NonEmptyText | None = Field(
        None, description="Id of a stored response to place before the input."
    )

    @model_validator(mode="after")
    def _has_something(self) -> Self:
        if self.input is None and self.previous_response_id is None:
            raise missing_error("input", "without previous_response_id")
        return self


class InputTokens(BaseModel):
    """Answer of POST /v1/responses/input_tokens: the number of tokens of the prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class RetrieveParameters(BaseModel):
    """Query parameters of GET /v1/responses/{id}: whether to return the response object or its stream events, and which
    events.
    """

    model_config = ConfigDict(extra="forbid")

    stream: bool = Field(
        False, description="Only allowed for responses created with background: true and stream: true."
    )
    starting_after: int | None = Field(None, ge=0, description="Stream only the events after this sequence number.")
    include_obfuscation: bool | None = Field(None, description="No effect: chunks are not padded.")


class InputItemsParameters(BaseModel):
    """Query parameters that select a page of a list of items, for the input items of a response and for the items of a
    conversation: at most `limit` items after the item with the id `after`, newest first (desc) or oldest first (asc).
    """

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
    after: str | None = Field(None, description="Id of the last item of the previous page.")
    include: list[Include] | None = Field(None, alias="include[]", description="No effect: items are always complete.")
