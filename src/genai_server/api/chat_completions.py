"""OpenAI's /v1/chat/completions."""

import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from genai_server.api.caller import TheCaller
from genai_server.api.choices import Choices
from genai_server.api.metrics import metrics_of
from genai_server.api.services import TheServices
from genai_server.api.sse import STREAMS, EventStream
from genai_server.api.start import start_chat
from genai_server.openai_api.chat_completion import ChatCompletionBuilder
from genai_server.openai_api.schemas.base import ErrorResponse
from genai_server.openai_api.schemas.chat import ChatCompletionRequest

router = APIRouter(tags=["openai"], responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)})


@router.post("/v1/chat/completions", responses=STREAMS)
@router.post("/chat/completions", include_in_schema=False)
async def create_chat_completion(
    body: ChatCompletionRequest,
    services: TheServices,
    caller: TheCaller,
) -> Response:
    """OpenAI's chat completion, in one piece or as a stream of chunks."""
    choices = await start_chat(services, body, caller, is_streamed=bool(body.stream))
    build = ChatCompletionBuilder(
        caller.request_id,
        choices.model,
        int(time.time()),
        has_usage=body.has_last_usage or body.has_running_usage,
        has_logprobs=bool(body.logprobs),
    )
    if body.stream:
        return EventStream(choices, _chunks(choices, build, body))
    answers = await choices.whole(caller.receive)
    reasons = [answer.reason for answer in choices.answers]
    completion = build.complete(list(zip(answers, reasons, strict=True)), choices.usage())
    if body.include_metrics:
        completion["metrics"] = metrics_of(choices)
    return JSONResponse(completion)


async def _chunks(choices: Choices, build: ChatCompletionBuilder, body: ChatCompletionRequest) -> AsyncIterator[Any]:
    for index in range(len(choices.answers)):
        yield build.first(index)
    async for index, answer, piece in choices.pieces():
        usage = choices.usage() if body.has_running_usage else None
        if piece is not None and piece.progress is not None:
            yield {**build.part(index, [], [], usage), "prompt_progress": piece.progress}
        elif piece is not None:
            yield build.part(index, piece.parts, piece.tokens, usage)
        else:
            yield build.last(index, answer.reason, usage, calls_tools=answer.calls_tools)
    if body.has_last_usage or body.include_metrics:
        chunk = build.usage(choices.usage())
        yield {**chunk, "metrics": metrics_of(choices)} if body.include_metrics else chunk
    yield "[DONE]"
