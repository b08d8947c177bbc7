"""The server's own chat endpoints: /v1/chat and /v1/chat/stream."""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter

from genai_server.api.answer import Piece
from genai_server.api.caller import TheCaller
from genai_server.api.choices import Choices
from genai_server.api.metrics import metrics_of
from genai_server.api.services import TheServices
from genai_server.api.sse import EventStream
from genai_server.api.start import start_chat
from genai_server.openai_api.chat_completion import logprobs, message
from genai_server.openai_api.schemas.base import ErrorResponse
from genai_server.openai_api.schemas.chat import ChatRequest, ChatResponse
from genai_server.parts import Content, Reasoning, ToolCallArguments, ToolCallStart

router = APIRouter(tags=["chat"], responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)})


@router.post("/v1/chat", response_model=ChatResponse, response_model_exclude_unset=True)
async def chat(
    body: ChatRequest,
    services: TheServices,
    caller: TheCaller,
) -> dict[str, Any]:
    """Answer in one piece."""
    choices = await start_chat(services, body, caller)
    (answer,) = await choices.whole(caller.receive)
    told = message(answer)
    found: dict[str, Any] = {name: told[name] for name in ("reasoning_content", "tool_calls") if name in told}
    if body.logprobs:
        found["logprobs"] = logprobs(answer.tokens)
    # The time to the first token means nothing to a client who gets all of them at once.
    metrics = {**metrics_of(choices), "ttft": None}
    return {
        "id": caller.request_id,
        "content": answer.content,
        "finish_reason": _reason(choices),
        "metrics": metrics,
        **found,
    }


@router.post("/v1/chat/stream", response_class=EventStream, status_code=200)
async def chat_stream(
    body: ChatRequest,
    services: TheServices,
    caller: TheCaller,
) -> EventStream:
    """Answer token by token."""
    choices = await start_chat(services, body, caller, is_streamed=True)
    return EventStream(choices, _events(choices, with_logprobs=bool(body.logprobs)))


async def _events(choices: Choices, *, with_logprobs: bool) -> AsyncIterator[dict[str, Any]]:
    async for _, _, piece in choices.pieces():
        if piece is not None:
            event = _event(piece)
            yield {**event, "logprobs": logprobs(piece.tokens)} if with_logprobs else event
    end = {"id": choices.id, "finish_reason": _reason(choices), "metrics": metrics_of(choices)}
    yield {"done": True, "token": "[DONE]", **end}


def _event(piece: Piece) -> dict[str, Any]:
    """`token` is more of the content; what else the answer has is beside it."""
    event: dict[str, Any] = {"token": ""}
    for part in piece.parts:
        match part:
            case Content(text):
                event["token"] += text
            case Reasoning(text):
                event["reasoning"] = event.get("reasoning", "") + text
            case ToolCallStart(index, id, name):
                event.setdefault("tool_calls", []).append({"index": index, "id": id, "name": name})
            case ToolCallArguments(index, fragment):
                event.setdefault("tool_calls", []).append({"index": index, "arguments": fragment})
    return event


def _reason(choices: Choices) -> str:
    (answer,) = choices.answers
    return "tool_calls" if answer.calls_tools and answer.reason == "stop" else answer.reason.value
