"""The server's own chat endpoints: /v1/chat and /v1/chat/stream."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request

from genai_server.api.answer import Answer
from genai_server.api.services import Services, request_id, services
from genai_server.api.sse import AnswerStream
from genai_server.openai_api.schemas import ChatRequest, ChatResponse, ErrorResponse

router = APIRouter(tags=["chat"], responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)})


@router.post("/v1/chat", response_model=ChatResponse)
async def chat(
    body: ChatRequest,
    request: Request,
    services: Annotated[Services, Depends(services)],
    request_id: Annotated[str, Depends(request_id)],
) -> dict[str, Any]:
    """Answer in one piece."""
    answer = await services.start_answer(body, request_id)
    content = await answer.text(request.receive)
    # The time to the first token means nothing to a client who gets all of them at once.
    metrics = {**_metrics(answer), "ttft": None}
    return {"id": request_id, "content": content, "finish_reason": answer.reason.value, "metrics": metrics}


@router.post("/v1/chat/stream", response_class=AnswerStream, status_code=200)
async def chat_stream(
    body: ChatRequest,
    services: Annotated[Services, Depends(services)],
    request_id: Annotated[str, Depends(request_id)],
) -> AnswerStream:
    """Answer token by token."""
    answer = await services.start_answer(body, request_id)
    return AnswerStream(answer, _events(answer))


async def _events(answer: Answer) -> AsyncIterator[dict[str, Any]]:
    async for piece in answer.pieces():
        yield {"token": piece}
    end = {"id": answer.request_id, "finish_reason": answer.reason.value, "metrics": _metrics(answer)}
    yield {"done": True, "token": "[DONE]", **end}


def _metrics(answer: Answer) -> dict[str, Any]:
    figures = msgspec.structs.asdict(answer.timings())
    rounded = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in figures.items()}
    return {**rounded, "model": answer.model}
