"""The server's own chat endpoints: /v1/chat and /v1/chat/stream."""

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from genai_server.apis.own_chat.response import ChatBuilder
from genai_server.apis.shared.base import JsonObject, Metrics, Text
from genai_server.apis.shared.chat_messages import ChatParameters, ToolCall
from genai_server.apis.shared.router import error_responses
from genai_server.errors import InvalidField
from genai_server.generation.answers import Generation
from genai_server.generation.dependencies import TheRequestContext, TheServices
from genai_server.generation.generate import generate
from genai_server.http.body_route import BodyRoute
from genai_server.http.json_response import built_response
from genai_server.http.sse import STREAMS, EventStream

router = APIRouter(route_class=BodyRoute, tags=["chat"], responses=error_responses(400, 404, 500, 503))


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


@router.post("/v1/chat", response_model=ChatResponse)
async def chat(
    body: ChatRequest,
    services: TheServices,
    context: TheRequestContext,
) -> Response:
    """Generate an answer and return it complete."""
    if body.stream:
        raise InvalidField("stream must be false; POST /v1/chat/stream streams the answer", param="stream")
    generation = await generate(services, body, context)
    build = ChatBuilder(context.request_id, has_logprobs=bool(body.logprobs))
    (whole,) = await context.run_while_connected(generation.whole())
    (answer,) = generation.answers
    return await built_response(
        lambda: build.complete(whole, answer.reason, generation.metrics()), is_long=bool(body.logprobs)
    )


@router.post("/v1/chat/stream", response_class=EventStream, status_code=200, responses=STREAMS)
async def chat_stream(
    body: ChatRequest,
    services: TheServices,
    context: TheRequestContext,
) -> EventStream:
    """Generate an answer and stream it token by token."""
    if body.stream is False:
        raise InvalidField("stream must be true; POST /v1/chat returns the complete answer", param="stream")
    generation = await generate(services, body, context, is_streamed=True)
    build = ChatBuilder(context.request_id, has_logprobs=bool(body.logprobs))
    return EventStream(generation, _events(generation, build))


async def _events(generation: Generation, build: ChatBuilder) -> AsyncGenerator[JsonObject]:
    async for _, answer, piece in generation.pieces():
        if piece is not None:
            yield build.part(piece.parts, piece.tokens)
        else:
            yield build.last(answer.reason, generation.metrics(), calls_tools=answer.calls_tools)
