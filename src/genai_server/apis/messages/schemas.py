"""Schemas of the request bodies of Anthropic's Messages API and of their parts: messages, content blocks, tools and
options (https://docs.anthropic.com/en/api/messages).

`MessagesRequest` is the body that creates a message, and `CountTokensRequest` the one that counts the tokens of a
prompt. `AnthropicErrorResponse` is the body of errors.
"""

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
    """A content block with a text. Messages of all roles may contain it. Citations are not supported."""

    type: Literal["text"]
    text: Text
    citations: Annotated[list[Any], elements(0)] | None = None


TextBlocks = Annotated[list[TextBlock], elements(MAX_PARTS)]


class Base64Source(StrictModel):
    """The source of an image block: an image file, encoded as base64 in `data`."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: NonEmptyText


class UrlSource(StrictModel):
    """The source of an image block: the URL of an image, at a host from which the operator allows the server to fetch
    images.
    """

    type: Literal["url"]
    url: NonEmptyText


class ImageBlock(_Cacheable):
    """A content block with an image, for models that take images. The image is in the request or at a URL; stored files
    are not supported.
    """

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, TaggedUnion("source", ": this server stores no files")]


class TextSource(StrictModel):
    """The source of a document block: a document that is one text, in `data`."""

    type: Literal["text"]
    media_type: Text | None = None
    data: Text


_DocumentPart = Annotated[TextBlock | ImageBlock, TaggedUnion("block")]


class ContentSource(StrictModel):
    """The source of a document block: a document that consists of texts and images."""

    type: Literal["content"]
    content: Text | Annotated[list[_DocumentPart], elements(MAX_PARTS)]


class DocumentBlock(_Cacheable):
    """A content block with a document of texts and images; files such as PDFs are not supported. The model reads the
    document's title and context before its content.
    """

    type: Literal["document"]
    source: Annotated[TextSource | ContentSource, TaggedUnion("source", ": this server reads no files")]
    title: Text | None = None
    context: Text | None = None
    citations: None = None

    @property
    def blocks(self) -> list[TextBlock | ImageBlock]:
        """Return the document as the text and image blocks that the model reads: its title, its context and its
        content.
        """
        content = self.source.data if isinstance(self.source, TextSource) else self.source.content
        texts = [self.title, self.context, content if isinstance(content, str) else None]
        texts_before = [TextBlock.model_construct(type="text", text=text) for text in texts if text is not None]
        return [*texts_before, *(content if isinstance(content, list) else ())]


class ToolReferenceBlock(_Cacheable):
    """A part of a tool result that names a tool which a tool search has found. The prompt defines the tool at this
    place.
    """

    type: Literal["tool_reference"]
    tool_name: NonEmptyText


_ResultBlock = Annotated[TextBlock | ImageBlock | DocumentBlock | ToolReferenceBlock, TaggedUnion("block")]


class ThinkingBlock(StrictModel):
    """A content block with reasoning of the assistant, in an earlier message. Its signature is not verified."""

    type: Literal["thinking"]
    thinking: Text
    signature: Any = Field(None, description="No effect: signatures are not verified.")


class RedactedThinkingBlock(StrictModel):
    """A content block with reasoning that another server has encrypted, in an earlier message. It is left out of the
    prompt.
    """

    type: Literal["redacted_thinking"]
    data: Any = None


class ToolUseBlock(_Cacheable):
    """A content block with a tool call of the assistant, in an earlier message. The client has run the call."""

    type: Literal["tool_use"]
    id: NonEmptyText
    name: NonEmptyText
    input: WritableObject
    caller: Any = Field(None, description="No effect: who called the tool does not change what it did.")
    toolset_name: Any = Field(None, description="No effect: the tool's name is its own.")


class ToolResultBlock(_Cacheable):
    """A content block with the result of a tool call that the client has run. `tool_use_id` is the id of the call. If
    `is_error` is true, the tool has failed, and the model reads "Error: " before the result.
    """

    type: Literal["tool_result"]
    tool_use_id: NonEmptyText
    content: Text | Annotated[list[_ResultBlock], elements(MAX_PARTS)] | None = None
    is_error: bool | None = None
    toolset_name: Any = Field(None, description="No effect: the call has the tool's name.")


class McpToolUseBlock(_Cacheable):
    """A content block with a call of a tool on an MCP tool server, in an earlier message of the assistant. The server
    that generated the message, and not the client, has run the call.
    """

    type: Literal["mcp_tool_use"]
    id: NonEmptyText
    name: NonEmptyText
    server_name: NonEmptyText
    input: WritableObject


class McpToolResultBlock(_Cacheable):
    """A content block with the result of a call of a tool on an MCP tool server. `tool_use_id` is the id of the call,
    an `mcp_tool_use` block before this one. The server that generated the message, and not the client, has run the
    call.
    """

    type: Literal["mcp_tool_result"]
    tool_use_id: NonEmptyText
    content: Text | TextBlocks | None = None
    is_error: bool | None = None

    @property
    def text(self) -> str:
        """Return the result as the text that the model reads. It begins with "Error: " if the tool has failed."""
        content = self.content or ""
        text = content if isinstance(content, str) else "\n".join(block.text for block in content)
        return f"Error: {text}" if self.is_error else text


class AnthropicTool(_Cacheable):
    """A tool that the model may call and the client runs: one that the client defines by a description and
    `input_schema`, a JSON schema, or one of Anthropic's own tools, such as bash_20250124, whose schema follows from its
    type.
    """

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
    """Names the tool that a block within a message adds or removes, one of the tools of the request."""

    type: Literal["tool_reference"]
    name: NonEmptyText


class ToolDefinition(StrictModel):
    """Defines the tool that a block within a message adds to those of the request."""

    type: Literal["tool_definition"]
    definition: AnthropicTool


class ToolAdditionBlock(_Cacheable):
    """A content block of a system message that adds a tool: the model may call it from this message on."""

    type: Literal["tool_addition"]
    tool: Annotated[ToolName | ToolDefinition, TaggedUnion("tool")]


class ToolRemovalBlock(_Cacheable):
    """A content block of a system message that removes a tool: the model may not call it from this message on."""

    type: Literal["tool_removal"]
    tool: ToolName


class CompactionBlock(_Cacheable):
    """A content block with a summary that stands for earlier messages. `tool_changes` are the additions and removals of
    tools in those messages, which stay in effect.
    """

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
    """A message of the conversation: a role, and as content a text or a list of blocks. Only some types of blocks are
    allowed with each role. Consecutive messages of the same role form one turn.
    """

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
        """Return the content of the message as a list of blocks. A content that is a text becomes one text block."""
        return (
            [TextBlock.model_construct(type="text", text=self.content)]
            if isinstance(self.content, str)
            else self.content
        )


class ToolChoice(StrictModel):
    """The field `tool_choice` of a request: whether the model decides about tool calls (auto), must call any tool
    (any), must call the tool `name` (tool), or may not call any tool (none).
    """

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = Field(None, description="Name of the tool, with type tool.")
    disable_parallel_tool_use: bool | None = Field(None, description="Allow at most one tool call in an answer.")

    @model_validator(mode="after")
    def _has_name(self) -> Self:
        check_with_type(self.type, "tool", name=self.name)
        return self


class Thinking(StrictModel):
    """The field `thinking` of a request: whether the model reasons before it answers, for how many tokens, and whether
    its reasoning is returned.

    With the type `adaptive`, the default of the model's chat template applies. `between_tools` has the same effect as
    `disabled`, because the models here do not write about their progress between tool calls.
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
        """Return whether the request asks the model not to reason."""
        return self.type in ("disabled", "between_tools")

    @model_validator(mode="after")
    def _fits_type(self) -> Self:
        if self.budget_tokens is not None and self.type != "enabled":
            raise field_error("budget_tokens", "is only allowed with type enabled")
        if self.display is not None and self.is_off:
            raise field_error("display", f"is not allowed with type {self.type}")
        return self


class OutputFormat(StrictModel):
    """The JSON schema that the text of the answer must match."""

    type: Literal["json_schema"]
    schema_: WritableObject = Field(alias="schema")


class OutputConfig(StrictModel):
    """The field `output_config` of a request: how much the model reasons (`effort`), and the format of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class McpToolConfiguration(StrictModel):
    """Which tools of an MCP tool server the model may call, as an older version of Anthropic's API expresses it, within
    the entry for the server: `enabled` set to false excludes all, and `allowed_tools` excludes those that it does not
    name.
    """

    enabled: bool | None = None
    allowed_tools: Annotated[list[NonEmptyText], elements(MAX_TOOLS)] | None = None


class McpServer(StrictModel):
    """An entry of the field `mcp_servers`: an MCP tool server. The model may call the server's tools, and this server
    runs the calls. The tool server is one of this server's configuration or, with `url`, one at a host that the
    operator allows.
    """

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
    """An entry of an McpToolset: whether the model may call a tool (`enabled`; yes by default)."""

    enabled: bool | None = None
    defer_loading: bool | None = Field(None, description="No effect: all tools are shown to the model.")


class McpToolset(_Cacheable):
    """Which tools of the MCP tool server `mcp_server_name` the model may call. `configs` has settings of single tools
    by name, and `default_config` applies to all others. Without any settings, all tools are allowed.
    """

    type: Literal["mcp_toolset"]
    mcp_server_name: NonEmptyText
    default_config: McpToolConfig | None = None
    configs: Annotated[dict[str, McpToolConfig], Field(max_length=MAX_TOOLS), members(MAX_TOOLS)] | None = None
    tools: Any = Field(None, description="No effect: the tool server lists its tools.")

    def allows(self, tool: str) -> bool:
        """Return whether the model may call the tool with the name `tool`. The tool's own setting has precedence over
        the default one.
        """
        tool_config = (self.configs or {}).get(tool)
        for config in (tool_config, self.default_config):
            if config is not None and config.enabled is not None:
                return config.enabled
        return True


class CountTokensRequest(StrictModel):
    """Body of POST /v1/messages/count_tokens, which counts the tokens of a prompt: the messages, the system prompt,
    tools and all other fields on which a prompt depends. It is also the base class of the body that creates a message.
    """

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
        """Return a copy of the body in which the entries of type `mcp_toolset` are moved from the field `tools`, where
        Anthropic's API has them, to the field `mcp_toolsets`. A body without such entries is returned unchanged. Runs
        before the validation, so `body` may be any value.
        """
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
    """Body of POST /v1/messages, which creates a message: the conversation, the maximum number of tokens, and sampling
    parameters, of which this server has more than Anthropic's API.
    """

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
    """The field `details` of an error in Anthropic's format. `error_code` is this server's code for the error, which is
    more specific than Anthropic's type of error.
    """

    error_code: str


class AnthropicErrorDetail(BaseModel):
    """The field `error` of an error response in Anthropic's format: Anthropic's type of the error, a message for
    people, and this server's error code.
    """

    type: str
    message: str
    details: ErrorCode


class AnthropicErrorResponse(BaseModel):
    """Body of all error responses of the Messages API, in Anthropic's format. It is only used for the documentation of
    the API (/openapi.json).
    """

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None
