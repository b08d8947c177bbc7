"""OpenAI's endpoints: /v1/chat/completions and /v1/models."""

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from genai_server.api.answer import Answer
from genai_server.api.services import Services, request_id, services
from genai_server.api.sse import AnswerStream
from genai_server.openai_api.schemas import ChatCompletionRequest, ErrorResponse
from genai_server.openai_api.translate import ChatCompletionBuilder, usage

router = APIRouter(tags=["openai"], responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)})


@router.post("/v1/chat/completions")
async def create_chat_completion(
    body: ChatCompletionRequest,
    request: Request,
    services: Annotated[Services, Depends(services)],
    request_id: Annotated[str, Depends(request_id)],
) -> Response:
    """OpenAI's chat completion, in one piece or as a stream of chunks."""
    answer = await services.start_answer(body, request_id)
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    build = ChatCompletionBuilder(request_id, answer.model, int(time.time()), with_usage=with_usage)
    if body.stream:
        return AnswerStream(answer, _chunks(answer, build, with_usage=with_usage))
    text = await answer.text(request.receive)
    return JSONResponse(build.complete(text, answer.reason, _usage(answer)))


@router.get("/v1/models")
async def list_models(services: Annotated[Services, Depends(services)]) -> dict[str, Any]:
    """The served models."""
    name = services.settings.model_name
    model = {"id": name, "object": "model", "created": services.started, "owned_by": "genai-server"}
    return {"object": "list", "data": [model]}


async def _chunks(answer: Answer, build: ChatCompletionBuilder, *, with_usage: bool) -> AsyncIterator[Any]:
    yield build.first()
    async for piece in answer.pieces():
        yield build.text(piece)
    yield build.last(answer.reason)
    if with_usage:
        yield build.usage(_usage(answer))
    yield "[DONE]"


def _usage(answer: Answer) -> dict[str, Any]:
    timings = answer.timings()
    return usage(timings.input_tokens, timings.output_tokens, answer.num_cached)
