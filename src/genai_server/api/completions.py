"""OpenAI's /v1/completions: text in, more of it out."""

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
from genai_server.api.start import Prompt, start_completion
from genai_server.openai_api.completion import CompletionBuilder
from genai_server.openai_api.schemas.base import ErrorResponse
from genai_server.openai_api.schemas.completions import CompletionRequest
from genai_server.parts import ScoredToken, WholeAnswer

router = APIRouter(tags=["openai"], responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)})


@router.post("/v1/completions", responses=STREAMS)
@router.post("/completions", include_in_schema=False)
async def create_completion(
    body: CompletionRequest,
    services: TheServices,
    caller: TheCaller,
) -> Response:
    """OpenAI's text completion, in one piece or as a stream of chunks."""
    prompts, choices = await start_completion(services, body, caller)
    build = CompletionBuilder(
        caller.request_id,
        choices.model,
        int(time.time()),
        has_usage=body.has_last_usage or body.has_running_usage,
        has_logprobs=body.logprobs is not None,
    )
    echoed = prompts if body.echo else None
    if body.stream:
        return EventStream(choices, _chunks(choices, build, body, echoed))
    answers = await choices.whole(caller.receive)
    found = []
    for index, answer in enumerate(answers):
        text, tokens = _echo(choices, index, echoed)
        text, tokens = text + answer.content, tokens + answer.tokens
        found.append(build.choice(index, text, tokens, choices.answers[index].reason))
    completion = build.complete(found, choices.usage())
    if body.include_metrics:
        completion["metrics"] = metrics_of(choices)
    return JSONResponse(completion)


async def _chunks(
    choices: Choices,
    build: CompletionBuilder,
    body: CompletionRequest,
    echoed: list[Prompt] | None,
) -> AsyncIterator[Any]:
    begun: set[int] = set()
    async for index, answer, piece in choices.pieces():
        usage = choices.usage() if body.has_running_usage else None
        if piece is not None and piece.progress is not None:
            yield {**build.chunk(build.choice(index, "", []), usage), "prompt_progress": piece.progress}
            continue
        text, tokens = ("", []) if index in begun else _echo(choices, index, echoed)
        begun.add(index)
        if piece is not None:
            whole = WholeAnswer()
            for part in piece.parts:
                whole.add(part)
            text, tokens = text + whole.content, tokens + piece.tokens
        yield build.chunk(build.choice(index, text, tokens, None if piece is not None else answer.reason), usage)
    if body.has_last_usage or body.include_metrics:
        chunk = build.usage(choices.usage())
        yield {**chunk, "metrics": metrics_of(choices)} if body.include_metrics else chunk
    yield "[DONE]"


def _echo(choices: Choices, index: int, prompts: list[Prompt] | None) -> tuple[str, list[ScoredToken]]:
    """What comes before an answer: its prompt, if that is wanted, with the prompt's scored tokens."""
    if prompts is None:
        return "", []
    prompt = prompts[index // choices.num_per_prompt]
    return prompt.text, prompt.scored(choices.answers[index].prompt_tokens)
