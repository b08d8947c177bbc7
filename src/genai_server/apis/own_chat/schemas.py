"""Bodies and responses of /v1/chat and /v1/chat/stream."""

from typing import Any

from pydantic import BaseModel, Field

from genai_server.apis.shared.base import Metrics, Text
from genai_server.apis.shared.chat_parameters import ChatParameters, ToolCall


class ChatRequest(ChatParameters):
    """Body of /v1/chat and /v1/chat/stream."""

    stream: bool | None = Field(None, description="Determined by the endpoint; the other value is refused.")
    n: int | None = Field(None, ge=1, le=1, description="These endpoints generate one answer.")
    functions: None = None
    function_call: None = None


class ChatResponse(BaseModel):
    """Response of /v1/chat."""

    id: str
    content: Text
    finish_reason: str
    metrics: Metrics
    reasoning_content: Text | None = None
    tool_calls: list[ToolCall] | None = None
    logprobs: dict[str, Any] | None = None
