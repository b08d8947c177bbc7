"""Bodies of Anthropic's Messages API (https://docs.anthropic.com/en/api/messages)."""

from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from genai_server.errors import quoted
from genai_server.generation.parameters.base import (
    NonEmptyText,
    StrictModel,
    TaggedUnion,
    Text,
    WritableObject,
    check_with_type,
    elements,
    field_error,
    members,
    missing_error,
)
from genai_server.generation.parameters.chat_messages import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, FunctionName
from genai_server.generation.parameters.sampling_parameters import MAX_STOP_STRINGS, SamplingFields, StopText

_BLOCKS_OF_ROLE = {
    "user": ("text", "image", "document", "tool_result", "compaction"),
    "assistant": (
        *("text", "image", "document", "thinking", "redacted_thinking", "tool_use", "compaction"),
        *("mcp_tool_use", "mcp_tool_result"),
    ),
    "system": ("text", "image", "document", "tool_addition", "tool_removal"),
}


class _Cacheable(StrictModel):
    cache_control: Any = Field(None, description="No effect: cached prefixes are reused automatically.")


ToolType = Literal[
    "custom",
    "bash_20241022",
    "bash_20250124",
    "text_editor_20241022",
    "text_editor_20250124",
    "text_editor_20250429",
    "text_editor_20250728",
    "memory_20250818",
]
# The types that tools may have where they have these fields.
_TYPES_OF_FIELD = {
    "description": ("custom",),
    "input_schema": ("custom",),
    "max_characters": ("text_editor_20250728",),
}


class TextBlock(_Cacheable):
    """A text, which messages of all roles may contain."""

    type: Literal["text"]
    text: Text
    citations: Annotated[list[Any], elements(0)] | None = None


TextBlocks = Annotated[list[TextBlock], elements(MAX_PARTS)]


class Base64Source(StrictModel):
    """An image file in base64."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: NonEmptyText


class UrlSource(StrictModel):
    """The URL of an image, on a host from which the server may fetch images."""

    type: Literal["url"]
    url: NonEmptyText


class ImageBlock(_Cacheable):
    """An image, for models that take images."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, TaggedUnion("source", ": this server stores no files")]


class TextSource(StrictModel):
    """The text of a document."""

    type: Literal["text"]
    media_type: Text | None = None
    data: Text


_DocumentPart = Annotated[TextBlock | ImageBlock, TaggedUnion("block")]


class ContentSource(StrictModel):
    """The text and images of a document."""

    type: Literal["content"]
    content: Text | Annotated[list[_DocumentPart], elements(MAX_PARTS)]


class DocumentBlock(_Cacheable):
    """A document of text and images. The model reads its title and context before its content."""

    type: Literal["document"]
    source: Annotated[TextSource | ContentSource, TaggedUnion("source", ": this server reads no files")]
    title: Text | None = None
    context: Text | None = None
    citations: None = None

    @property
    def blocks(self) -> list[TextBlock | ImageBlock]:
        """The title, the context and the content as text and image blocks."""
        content = self.source.data if isinstance(self.source, TextSource) else self.source.content
        texts = [self.title, self.context, content if isinstance(content, str) else None]
        texts_before = [TextBlock.model_construct(type="text", text=text) for text in texts if text is not None]
        return [*texts_before, *(content if isinstance(content, list) else ())]


class ToolReferenceBlock(_Cacheable):
    """A tool that a tool search has found. The model reads the tool's definition here."""

    type: Literal["tool_reference"]
    tool_name: NonEmptyText


_ResultBlock = Annotated[TextBlock | ImageBlock | DocumentBlock | ToolReferenceBlock, TaggedUnion("block")]


class ThinkingBlock(StrictModel):
    """The assistant's reasoning."""

    type: Literal["thinking"]
    thinking: Text
    signature: Any = Field(None, description="No effect: signatures are not verified.")


class RedactedThinkingBlock(StrictModel):
    """Reasoning that another server has encrypted. It is ignored."""

    type: Literal["redacted_thinking"]
    data: Any = None


class ToolUseBlock(_Cacheable):
    """A tool call of the assistant."""

    type: Literal["tool_use"]
    id: NonEmptyText
    name: NonEmptyText
    input: WritableObject
    caller: Any = Field(None, description="No effect: who called the tool does not change what it did.")
    toolset_name: Any = Field(None, description="No effect: the tool's name is its own.")


class ToolResultBlock(_Cacheable):
    """The result of a tool call. With `is_error` the model reads it after "Error: "."""

    type: Literal["tool_result"]
    tool_use_id: NonEmptyText
    content: Text | Annotated[list[_ResultBlock], elements(MAX_PARTS)] | None = None
    is_error: bool | None = None
    toolset_name: Any = Field(None, description="No effect: the call has the tool's name.")


class McpToolUseBlock(_Cacheable):
    """A call of a tool server's tool, which the server itself has run."""

    type: Literal["mcp_tool_use"]
    id: NonEmptyText
    name: NonEmptyText
    server_name: NonEmptyText
    input: WritableObject


class McpToolResultBlock(_Cacheable):
    """The result of a tool call that the server itself has run (`mcp_tool_use`)."""

    type: Literal["mcp_tool_result"]
    tool_use_id: NonEmptyText
    content: Text | TextBlocks | None = None
    is_error: bool | None = None

    @property
    def text(self) -> str:
        """The result as the model reads it."""
        content = self.content or ""
        text = content if isinstance(content, str) else "\n".join(block.text for block in content)
        return f"Error: {text}" if self.is_error else text


class AnthropicTool(_Cacheable):
    """A tool that the model may call and the client runs. `input_schema` is a JSON schema."""

    type: ToolType | None = Field(
        None, description="custom, or one of Anthropic's tools whose schema follows from the type."
    )
    name: FunctionName
    description: Text | None = None
    input_schema: WritableObject | None = Field(None, description="Required, and only allowed, with type custom.")
    input_examples: Annotated[list[WritableObject], elements(MAX_PARTS)] | None = Field(
        None, description="Inputs as examples; they are part of the description."
    )
    max_characters: int | None = Field(
        None, ge=1, description="Only with type text_editor_20250728: how much of a file the client shows."
    )
    strict: bool | None = Field(
        None,
        description="true: follow the schema exactly, or refuse the request. false: enforce as much of it as possible.",
    )
    allowed_callers: Annotated[list[Literal["direct"]], elements(8)] | None = None
    defer_loading: bool | None = Field(
        None, description="true: the prompt has the tool only from where a message refers to it."
    )
    eager_input_streaming: bool | None = Field(None, description="No effect: input is always streamed.")

    @model_validator(mode="after")
    def _fits_type(self) -> Self:
        kind = self.type or "custom"
        if kind == "custom" and self.input_schema is None:
            raise missing_error("input_schema", "with type custom")
        for field, types in _TYPES_OF_FIELD.items():
            if getattr(self, field) is not None and kind not in types:
                raise field_error(field, f"is only allowed with type {' or '.join(types)}; given with type {kind}")
        return self


class ToolName(StrictModel):
    """Refers to a tool of the request by its name."""

    type: Literal["tool_reference"]
    name: NonEmptyText


class ToolDefinition(StrictModel):
    """A tool that is defined within a message."""

    type: Literal["tool_definition"]
    definition: AnthropicTool


class ToolAdditionBlock(_Cacheable):
    """From this message on, the model may call the tool."""

    type: Literal["tool_addition"]
    tool: Annotated[ToolName | ToolDefinition, TaggedUnion("tool")]


class ToolRemovalBlock(_Cacheable):
    """From this message on, the model may not call the tool."""

    type: Literal["tool_removal"]
    tool: ToolName


class CompactionBlock(_Cacheable):
    """A summary that replaces earlier messages, with the changes of tools that those messages contained."""

    type: Literal["compaction"]
    content: Text | None = None
    tool_changes: (
        Annotated[list[Annotated[ToolAdditionBlock | ToolRemovalBlock, TaggedUnion("change")]], elements(MAX_TOOLS)]
        | None
    ) = None


Block = Annotated[
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | CompactionBlock
    | ToolAdditionBlock
    | ToolRemovalBlock
    | McpToolUseBlock
    | McpToolResultBlock,
    TaggedUnion("block"),
]


class AnthropicMessage(StrictModel):
    """A message of the conversation. Consecutive messages of one role form one turn."""

    role: Literal["user", "assistant", "system"]
    content: Text | Annotated[list[Block], elements(MAX_PARTS)]
    clear_at: Literal["next_user_message", "never"] | None = Field(
        None, description="With role system: next_user_message leaves it out once a later message is the user's."
    )

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if self.clear_at is not None and self.role != "system":
            raise field_error("clear_at", f"is only allowed with role system; given with role {self.role}")
        allowed = _BLOCKS_OF_ROLE[self.role]
        for index, block in enumerate(self.blocks):
            if block.type not in allowed:
                rule = f"must be of type {' or '.join(allowed)} with role {self.role}; given {block.type}"
                raise field_error(f"content[{index}].type", rule)
        if not self.blocks and self.role != "assistant":
            raise field_error("content", f"must have at least one block with role {self.role}")
        return self

    @property
    def blocks(self) -> list[Block]:
        """The content as a list of blocks."""
        return (
            [TextBlock.model_construct(type="text", text=self.content)]
            if isinstance(self.content, str)
            else self.content
        )


class ToolChoice(StrictModel):
    """Whether the model must call a tool, and which one."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = Field(None, description="Name of the tool, with type tool.")
    disable_parallel_tool_use: bool | None = Field(None, description="Allow at most one tool call in an answer.")

    @model_validator(mode="after")
    def _has_name(self) -> Self:
        check_with_type(self.type, "tool", name=self.name)
        return self


class Thinking(StrictModel):
    """Whether the model reasons before it answers. `adaptive` leaves that to the chat template's default.
    `between_tools` has the same effect as `disabled`, because no model here writes about its progress between tool
    calls.
    """

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(
        None, ge=1, description="Maximum number of tokens of the reasoning, also below Anthropic's minimum of 1,024."
    )
    display: Literal["summarized", "omitted", "updates"] | None = Field(
        None, description="summarized, updates: return the reasoning as it is. omitted: do not return it."
    )
    block_binding: Any = Field(None, description="No effect: thinking that is sent back is not checked.")

    @property
    def is_off(self) -> bool:
        """Whether the request asks the model not to reason."""
        return self.type in ("disabled", "between_tools")

    @model_validator(mode="after")
    def _fits_type(self) -> Self:
        if self.budget_tokens is not None and self.type != "enabled":
            raise field_error("budget_tokens", "is only allowed with type enabled")
        if self.display is not None and self.is_off:
            raise field_error("display", f"is not allowed with type {self.type}")
        return self


class OutputFormat(StrictModel):
    """The JSON schema that the answer must match."""

    type: Literal["json_schema"]
    schema_: WritableObject = Field(alias="schema")


class OutputConfig(StrictModel):
    """Options of the answer: reasoning effort and format."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class McpToolConfiguration(StrictModel):
    """Which tools of a tool server the model may call, in the older form of Anthropic's API."""

    enabled: bool | None = None
    allowed_tools: Annotated[list[NonEmptyText], elements(MAX_TOOLS)] | None = None


class McpServer(StrictModel):
    """A tool server whose tools this server runs: one from its configuration, or one at an allowed host."""

    type: Literal["url"]
    name: NonEmptyText = Field(
        description="The name of the tool server in this server's configuration; any other name with a url."
    )
    url: Text | None = Field(
        None, description="Address of a server that the configuration does not have, at a host of GENAI_MCP_HOSTS."
    )
    authorization_token: Text | None = Field(None, description="OAuth token for such a server.")
    tool_configuration: McpToolConfiguration | None = None


class McpToolConfig(StrictModel):
    """Whether the model may call one tool."""

    enabled: bool | None = None
    defer_loading: bool | None = Field(None, description="No effect: all tools are shown to the model.")


class McpToolset(_Cacheable):
    """Which tools of a tool server the model may call."""

    type: Literal["mcp_toolset"]
    mcp_server_name: NonEmptyText
    default_config: McpToolConfig | None = None
    configs: Annotated[dict[str, McpToolConfig], Field(max_length=MAX_TOOLS), members(MAX_TOOLS)] | None = None
    tools: Any = Field(None, description="No effect: the tool server lists its tools.")

    def allows(self, tool: str) -> bool:
        """Whether the model may call the tool of this name."""
        tool_config = (self.configs or {}).get(tool)
        for config in (tool_config, self.default_config):
            if config is not None and config.enabled is not None:
                return config.enabled
        return True


class CountTokensRequest(StrictModel):
    """Body of /v1/messages/count_tokens: the fields of a message request from which the prompt is made."""

    model: str | None = Field(None, description="Id of a served model; by default the first one.")
    messages: Annotated[list[AnthropicMessage], elements(MAX_MESSAGES, min_length=1)]
    system: Text | TextBlocks | None = None
    tools: Annotated[list[AnthropicTool], elements(MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="Anthropic's older name for output_config.format.")
    cache_control: Any = Field(None, description="No effect: cached prefixes are reused automatically.")
    mcp_servers: Annotated[list[McpServer], elements(MAX_TOOLS)] | None = None
    mcp_toolsets: Annotated[list[McpToolset], elements(MAX_TOOLS)] | None = Field(
        None, description="The tools of type mcp_toolset, which Anthropic's API has in tools."
    )

    @model_validator(mode="before")
    @classmethod
    def _separate_toolsets(cls, body: Any) -> Any:
        """Move toolsets from the body's field `tools`, where Anthropic's API has them, to the field `mcp_toolsets`."""
        tools = body.get("tools") if isinstance(body, dict) else None
        if not isinstance(tools, list):
            return body
        sets = [tool for tool in tools if isinstance(tool, dict) and tool.get("type") == "mcp_toolset"]
        if not sets:
            return body
        return {**body, "tools": [tool for tool in tools if tool not in sets], "mcp_toolsets": sets}

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        names = [tool.name for tool in self.tools or []]
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise field_error("tools", f"must have unique names; given {quoted(twice[0])} twice")
        choice = self.tool_choice
        if choice is not None and choice.type in ("any", "tool") and not names and not self.mcp_servers:
            raise field_error("tool_choice", f"of type {choice.type} is only allowed with tools")
        name = None if choice is None else choice.name
        if name is not None and name not in names and not self.mcp_servers:
            raise field_error("tool_choice.name", f"must be the name of one of tools; given {quoted(name)}")
        config = self.output_config
        if self.thinking is not None and self.thinking.is_off and config is not None and config.effort is not None:
            raise field_error("output_config.effort", f"is not allowed with thinking of type {self.thinking.type}")
        if self.output_format is not None and config is not None and config.format is not None:
            raise field_error("output_format", "cannot be combined with output_config.format")
        return self


class MessagesRequest(CountTokensRequest, SamplingFields):
    """Body of /v1/messages, with this server's sampling parameters in addition to Anthropic's."""

    max_tokens: int = Field(ge=1, description="Maximum number of tokens of the answer.")
    temperature: float | None = Field(None, ge=0.0, le=1.0, description="0 always selects the most likely token.")
    stop_sequences: Annotated[list[StopText], elements(MAX_STOP_STRINGS)] | None = Field(
        None, description="Texts that end the answer; they are not returned."
    )
    stop: None = Field(None, description="Not supported; use stop_sequences.")
    stream: bool | None = None
    device: str | None = Field(None, description="Configured device to run on; by default the least busy one.")
    thread: Any = Field(
        None, description="Refused with an error code that makes Anthropic's client continue without it."
    )
    metadata: Any = Field(None, description="Accepted, but has no effect.")
    service_tier: Any = Field(None, description="Accepted, but has no effect.")


class ErrorCode(BaseModel):
    """The error code of this server."""

    error_code: str


class AnthropicErrorDetail(BaseModel):
    """The error in Anthropic's format."""

    type: str
    message: str
    details: ErrorCode


class AnthropicErrorResponse(BaseModel):
    """Body of all error responses, in Anthropic's format."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None
