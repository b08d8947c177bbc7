"""OpenAI's /v1/completions: text in, more of it out."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from genai_server.answer_parts import ScoredToken, WholeAnswer
from genai_server.api.generation.answers import Generation
from genai_server.api.generation.generate import generate
from genai_server.api.generation.json_response import built_response, written
from genai_server.api.generation.request_context import TheRequestContext
from genai_server.api.generation.sse import STREAMS, EventStream
from genai_server.api.middleware.body import BodyRoute
from genai_server.api.services import TheServices
from genai_server.generation import FinishReason
from genai_server.openai_api.completion import CompletionBuilder
from genai_server.openai_api.schemas.base import ErrorResponse, JsonObject
from genai_server.openai_api.schemas.completions import CompletionRequest

router = APIRouter(
    route_class=BodyRoute, tags=["openai"], responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)}
)


@router.post("/v1/completions", responses=STREAMS)
@router.post("/completions", include_in_schema=False)
async def create_completion(
    body: CompletionRequest,
    services: TheServices,
    context: TheRequestContext,
) -> Response:
    """OpenAI's text completion, in one piece or as a stream of chunks."""
    generation = await generate(services, body, context, is_streamed=bool(body.stream))
    build = CompletionBuilder(
        context.request_id,
        generation.model,
        int(time.time()),
        has_usage=body.has_last_usage or body.has_running_usage,
        has_logprobs=body.logprobs is not None,
    )
    if body.stream:
        return EventStream(generation, _chunks(generation, build, body))
    with closing(generation):
        answers = await context.waits_for(generation.whole())

    def completion() -> JsonObject:
        found = [
            written(_begin(generation, build, index, answer.content, answer.tokens, generation.answers[index].reason))
            for index, answer in enumerate(answers)
        ]
        metrics = {"metrics": generation.metrics()} if body.include_metrics else {}
        return {**build.complete([], generation.usage()), "choices": found, **metrics}

    return await built_response(completion, is_long=bool(body.echo) or body.logprobs is not None)


async def _chunks(
    generation: Generation,
    build: CompletionBuilder,
    body: CompletionRequest,
) -> AsyncIterator[Any]:
    begun: set[int] = set()
    async for index, answer, piece in generation.pieces():
        usage = generation.usage() if body.has_running_usage else None
        if piece is not None and piece.progress is not None:
            yield {**build.chunk(build.choice(index, "", []), usage), "prompt_progress": piece.progress}
            continue
        whole = WholeAnswer()
        if piece is not None:
            for part in piece.parts:
                whole.add(part)
        reason, more = (answer.reason, []) if piece is None else (None, piece.tokens)
        if body.echo and index not in begun:
            begun.add(index)
            choice = await asyncio.to_thread(_begin, generation, build, index, whole.content, more, reason)
        else:
            choice = build.choice(index, whole.content, more, reason)
        yield build.chunk(choice, usage)
    if body.has_last_usage or body.include_metrics:
        chunk = build.usage(generation.usage())
        yield {**chunk, "metrics": generation.metrics()} if body.include_metrics else chunk
    yield "[DONE]"


def _begin(
    generation: Generation,
    build: CompletionBuilder,
    index: int,
    text: str,
    tokens: list[ScoredToken],
    reason: FinishReason | None,
) -> JsonObject:
    """One answer, or its beginning, after its prompt if that is echoed."""
    prompt = generation.prompts[index // generation.num_per_prompt]
    scored = prompt.scored(generation.answers[index].prompt_tokens)
    return build.choice(index, prompt.text + text, scored + tokens, reason)
