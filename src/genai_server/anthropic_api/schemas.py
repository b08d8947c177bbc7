"""Bodies of Anthropic's Messages API (https://docs.anthropic.com/en/api/messages)."""

from collections import Counter
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Discriminator, Field, Tag, model_validator

from genai_server.openai_api.schemas.base import (
    NonEmptyText,
    Text,
    Wire,
    WritableObject,
    elements,
    field_error,
    missing_error,
)
from genai_server.openai_api.schemas.chat import MOST_MESSAGES, MOST_PARTS, MOST_TOOLS, FunctionName
from genai_server.openai_api.schemas.response_items import DirectCaller
from genai_server.openai_api.schemas.sampling import MOST_STOP_STRINGS, SamplingFields, StopText
from genai_server.quoted_values import quoted

_BLOCKS_OF_ROLE = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}


def _not_true(value: bool) -> bool:
    if value:
        raise ValueError("must be false")
    return value


class _Cacheable(Wire):
    cache_control: Any = Field(None, description="Has no effect here: whatever begins alike is used again.")


class TextBlock(_Cacheable):
    """Text, of anyone."""

    type: Literal["text"]
    text: Text
    citations: Annotated[list[Any], elements(0)] | None = None


TextBlocks = Annotated[list[TextBlock], elements(MOST_PARTS)]


class ThinkingBlock(Wire):
    """What the assistant thought."""

    type: Literal["thinking"]
    thinking: Text
    signature: Any = Field(None, description="Has no effect here: nothing verifies it.")


class RedactedThinkingBlock(Wire):
    """Thoughts that only another server could read; they are left out."""

    type: Literal["redacted_thinking"]
    data: Any = None


class ToolUseBlock(_Cacheable):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: NonEmptyText
    name: FunctionName
    input: WritableObject
    caller: DirectCaller | None = None
    toolset_name: None = None


class ToolResultBlock(_Cacheable):
    """What a call gave; `is_error` puts "Error: " before it."""

    type: Literal["tool_result"]
    tool_use_id: NonEmptyText
    content: Text | TextBlocks | None = None
    is_error: bool | None = None
    toolset_name: None = None


def _tag(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else getattr(block, "type", None)
    # With "type=" before it, a tag is not taken for the name of a field in the place that an error names.
    return f"type={kind}"


Block = Annotated[
    Annotated[TextBlock, Tag("type=text")]
    | Annotated[ThinkingBlock, Tag("type=thinking")]
    | Annotated[RedactedThinkingBlock, Tag("type=redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("type=tool_use")]
    | Annotated[ToolResultBlock, Tag("type=tool_result")],
    Discriminator(
        _tag,
        custom_error_type="block",
        custom_error_message="must be a block of type text, thinking, redacted_thinking, tool_use or tool_result",
    ),
]


class AnthropicMessage(Wire):
    """One turn of the conversation, or a part of one."""

    role: Literal["user", "assistant", "system"]
    content: Text | Annotated[list[Block], elements(MOST_PARTS)]

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
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
        """The content as blocks."""
        return (
            [TextBlock.model_construct(type="text", text=self.content)]
            if isinstance(self.content, str)
            else self.content
        )


class AnthropicTool(_Cacheable):
    """What the model may call; `input_schema` is a JSON schema. The client runs it."""

    type: Literal["custom"] | None = Field(None, description="This server runs no tools itself.")
    name: FunctionName
    description: Text | None = None
    input_schema: WritableObject
    strict: bool | None = Field(
        None, description="Whether calls fit all of the schema, or as far as it can be followed."
    )
    allowed_callers: Annotated[list[Literal["direct"]], elements(8)] | None = None
    defer_loading: Annotated[bool, AfterValidator(_not_true)] | None = None
    eager_input_streaming: bool | None = Field(None, description="Has no effect here: input is sent as it comes.")


class ToolChoice(Wire):
    """Whether tools must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = Field(None, description="Of the tool, with type tool.")
    disable_parallel_tool_use: bool | None = Field(None, description="At most one call in an answer.")

    @model_validator(mode="after")
    def _has_name(self) -> Self:
        if self.type == "tool" and self.name is None:
            raise missing_error("name", "with type tool")
        if self.type != "tool" and self.name is not None:
            raise field_error("name", "is only allowed with type tool")
        return self


class Thinking(Wire):
    """Whether the model thinks before it answers; adaptive leaves it to the model's chat template."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1024, description="Has no effect here: max_tokens bounds both.")
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="Thoughts are shown as they are, or not."
    )

    @model_validator(mode="after")
    def _fits_type(self) -> Self:
        if self.budget_tokens is not None and self.type != "enabled":
            raise field_error("budget_tokens", "is only allowed with type enabled")
        if self.display is not None and self.type == "disabled":
            raise field_error("display", "is not allowed with type disabled")
        return self


class OutputFormat(Wire):
    """What the answer must fit."""

    type: Literal["json_schema"]
    schema_: WritableObject = Field(alias="schema")


class OutputConfig(Wire):
    """How the answer shall be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(Wire):
    """Body of /v1/messages/count_tokens: what makes the prompt."""

    model: str | None = Field(None, description="The served model's id; the first model if left out.")
    messages: Annotated[list[AnthropicMessage], elements(MOST_MESSAGES, least=1)]
    system: Text | TextBlocks | None = None
    tools: Annotated[list[AnthropicTool], elements(MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = Field(None, description="Has no effect here: whatever begins alike is used again.")

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        names = [tool.name for tool in self.tools or []]
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise field_error("tools", f"must have different names; given {quoted(twice[0])} twice")
        choice = self.tool_choice
        if choice is not None and choice.type in ("any", "tool") and not names:
            raise field_error("tool_choice", f"of type {choice.type} is only allowed with tools")
        if choice is not None and choice.name is not None and choice.name not in names:
            raise field_error("tool_choice.name", f"must be the name of one of tools; given {quoted(choice.name)}")
        last = self.messages[-1]
        if last.role == "assistant" and any(block.type == "tool_use" for block in last.blocks):
            place = f"messages[{len(self.messages) - 1}]"
            raise field_error(place, "must be followed by a message with the results of its calls")
        thinks = self.thinking is None or self.thinking.type != "disabled"
        if not thinks and self.output_config is not None and self.output_config.effort is not None:
            raise field_error("output_config.effort", "is not allowed with thinking of type disabled")
        return self


class MessagesRequest(CountTokensRequest, SamplingFields):
    """Body of /v1/messages, with this server's own options of sampling beside Anthropic's."""

    max_tokens: int = Field(ge=1, description="Most tokens of the answer.")
    temperature: float | None = Field(None, ge=0.0, le=1.0, description="0 takes the most likely token each time.")
    stop_sequences: Annotated[list[StopText], elements(MOST_STOP_STRINGS)] | None = Field(
        None, description="Texts that end the answer; they are not part of it."
    )
    stop: None = Field(None, description="Is called stop_sequences here.")
    stream: bool | None = None
    device: str | None = Field(None, description="The configured device to run on; the least busy one if left out.")
    thread: Any = Field(None, description="Refused with a code that tells Anthropic's client to go on without.")
    metadata: Any = Field(None, description="Has no effect here.")
    service_tier: Any = Field(None, description="Has no effect here.")


class ErrorCode(BaseModel):
    """The cause, in this server's words."""

    error_code: str


class AnthropicErrorDetail(BaseModel):
    """What went wrong."""

    type: str
    message: str
    details: ErrorCode


class AnthropicErrorResponse(BaseModel):
    """Every error's body, in Anthropic's form."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str | None
