"""Bodies of the chat endpoints, the server's own and OpenAI's."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from genai_server.openai_api.schemas.base import (
    ChatRouterFields,
    Metrics,
    NonEmptyText,
    Text,
    Wire,
    elements,
    field_error,
    missing_error,
)
from genai_server.openai_api.schemas.sampling import MOST_CHOICES, GenerationFields, OtherStructureFields, StreamFields
from genai_server.quoted_values import quoted

MOST_OF_NAME = 128
FunctionName = Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_.-]{{1,{MOST_OF_NAME}}}$")]
# Those of a long conversation with tools; a template takes some microseconds for each.
MOST_MESSAGES = 4096
MOST_TOOLS = 512
# And calls, of one message.
MOST_PARTS = 4096
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TextPart(Wire):
    """A piece of a message's content; this server's models read text only."""

    type: Literal["text"]
    text: Text
    prompt_cache_breakpoint: Any = Field(None, description="Has no effect here.")


TextParts = Annotated[list[TextPart], elements(MOST_PARTS)]


class CalledFunction(Wire):
    """Name and arguments of a call; the arguments are the text of a JSON object."""

    name: FunctionName
    arguments: Text


class ToolCall(Wire):
    """A call that the assistant made."""

    id: NonEmptyText
    type: Literal["function"] = "function"
    function: CalledFunction


ToolCalls = Annotated[list[ToolCall], elements(MOST_PARTS)]


_ONLY_OF = {
    "tool_calls": "assistant",
    "function_call": "assistant",
    "reasoning_content": "assistant",
    "reasoning": "assistant",
    "tool_call_id": "tool",
}


class ChatMessage(Wire):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | TextParts | None = None
    name: NonEmptyText | None = None
    tool_calls: ToolCalls | None = Field(None, description="Of the assistant.")
    tool_call_id: NonEmptyText | None = Field(None, description="Of a tool's result: the call that it answers.")
    reasoning_content: Text | None = Field(None, description="Of the assistant.")
    reasoning: Text | None = Field(None, description="The same under another name.")
    refusal: None = None
    annotations: Annotated[list[Any], elements(0)] | None = None
    audio: None = None
    function_call: CalledFunction | None = Field(None, description="Of the assistant: a call without an id.")
    provider_specific_fields: Any = Field(None, description="Of litellm, which sends back its messages as they are.")

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if self.role == "assistant":
            if self.content is None and not self.tool_calls and self.function_call is None:
                raise missing_error("content", "of an assistant without tool_calls")
        elif self.content is None:
            raise missing_error("content", f"of role {self.role}")
        for field, role in _ONLY_OF.items():
            if getattr(self, field) is not None and self.role != role:
                raise field_error(field, f"is only allowed of role {role}; given with role {self.role}")
        if self.tool_calls and self.function_call is not None:
            raise field_error("function_call", "cannot be given beside tool_calls")
        if self.role == "tool" and self.tool_call_id is None:
            raise missing_error("tool_call_id", "of role tool")
        if self.role == "function" and self.name is None:
            raise missing_error("name", "of role function")
        return self

    def for_template(self) -> dict[str, Any]:
        """As the text side takes it: what is not there is left out, but for the content."""
        fields = self.model_dump(exclude_none=True, exclude={"annotations", "provider_specific_fields", "reasoning"})
        if self.reasoning is not None:
            fields.setdefault("reasoning_content", self.reasoning)
        return {"content": None, **fields} if self.tool_calls else fields


class Function(Wire):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: FunctionName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(
        None, description="Whether calls fit all of the schema, or as far as it can be followed."
    )


class Tool(Wire):
    """What the model may call."""

    type: Literal["function"]
    function: Function


class NamedFunction(Wire):
    name: FunctionName


class NamedTool(Wire):
    """The one function that must be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedNames(Wire):
    """Some of `tools`, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], elements(MOST_TOOLS, least=1)]


class AllowedTools(Wire):
    """The functions that the model may, or must, call now, among those in `tools`; it is told of no others."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedNames


class JsonSchema(Wire):
    """A JSON schema that the answer fits; if not `strict`, as far as it can be followed."""

    name: NonEmptyText
    description: Text | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Wire):
    """What the answer must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise missing_error("json_schema", "with type json_schema")
        if self.type != "json_schema" and self.json_schema is not None:
            raise field_error("json_schema", "is only allowed with type json_schema")
        return self


def _with_ids(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Calls and results from before tools, which have no ids, as those of tools. A result is that of the last call."""
    id = ""
    for place, message in enumerate(messages):
        if message.function_call is not None:
            id = f"call{place:05}"  # the length that Mistral's templates want
            message.tool_calls, message.function_call = [ToolCall(id=id, function=message.function_call)], None
        elif message.role == "function":
            message.role, message.tool_call_id = "tool", id or f"call{place:05}"
    return messages


Messages = Annotated[list[ChatMessage], elements(MOST_MESSAGES, least=1), AfterValidator(_with_ids)]
Tools = Annotated[list[Tool], elements(MOST_TOOLS)]


class Prediction(Wire):
    """What much of the answer is expected to be."""

    type: Literal["content"]
    content: Text | TextParts

    @property
    def text(self) -> str:
        """The expected text."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatParameters(GenerationFields):
    """What all chat endpoints take."""

    messages: Messages
    n: int | None = Field(None, ge=1, le=MOST_CHOICES, description="So many answers.")
    logprobs: bool | None = Field(None, description="The log probability of each token of the answer.")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="And of so many likeliest ones at its place.")
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = Field(None, description="Whether one answer may call several tools.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="More variables for the chat template.")
    reasoning_effort: ReasoningEffort | None = None
    prediction: Prediction | None = Field(None, description="Makes an answer faster that has much of it.")
    max_completion_tokens: int | None = Field(None, ge=1, description="OpenAI's newer name of max_tokens.")
    store: Any = Field(None, description="Has no effect here: nothing is kept.")
    # OpenAI's that this server cannot honour: nothing but null.
    audio: None = None
    modalities: Annotated[list[Literal["text"]], elements(8)] | None = None
    verbosity: Literal["medium"] | None = Field(None, description="Nothing but OpenAI's default.")
    web_search_options: None = None

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
        """What is not allowed is as if it were not there."""
        names = {tool.function.name for tool in allowed.tools}
        offered = {tool.function.name for tool in self.tools or []}
        if strange := sorted(names - offered):
            raise field_error("tool_choice", f"allows the function {quoted(strange[0])}, which is not among tools")
        self.tools = [tool for tool in self.tools or [] if tool.function.name in names]
        self.tool_choice = allowed.mode


class ChatRequest(ChatParameters):
    """Body of /v1/chat and /v1/chat/stream."""

    stream: bool | None = Field(None, description="The endpoint decides; the other value is refused.")
    n: int | None = Field(None, ge=1, le=1, description="These endpoints give one answer.")
    functions: None = None
    function_call: None = None


class ChatCompletionRequest(ChatParameters, StreamFields, ChatRouterFields, OtherStructureFields):
    """Body of /v1/chat/completions."""

    functions: Annotated[list[Function], elements(MOST_TOOLS)] | None = Field(None, description="Older name of tools.")
    function_call: Literal["none", "auto"] | NamedFunction | None = Field(
        None, description="Older name of tool_choice; only with functions."
    )

    @model_validator(mode="after")
    def _functions_are_tools(self) -> Self:
        if self.function_call is not None and self.functions is None:
            raise field_error("function_call", "is only allowed with functions")
        if self.functions is None:
            return self
        called = self.function_call
        same_in_new = {
            "tools": [Tool(type="function", function=function) for function in self.functions],
            "tool_choice": NamedTool(type="function", function=called) if isinstance(called, NamedFunction) else called,
            "parallel_tool_calls": False,
        }
        for field, value in same_in_new.items():
            if getattr(self, field) not in (None, value):  # FastAPI validates a body once more
                raise field_error(field, "cannot be given beside functions")
            setattr(self, field, value)
        return self

    @property
    def other_names(self) -> dict[str, str]:
        older = {} if self.functions is None else {"tools": "functions", "tool_choice": "function_call"}
        return {**super().other_names, **older}


class ChatResponse(BaseModel):
    """Answer of /v1/chat."""

    id: str
    content: Text
    finish_reason: str
    metrics: Metrics
    reasoning_content: Text | None = None
    tool_calls: list[ToolCall] | None = None
    logprobs: dict[str, Any] | None = None
