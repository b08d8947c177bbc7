"""Ollama's /api/chat and /api/generate, and those of its endpoints that this server refuses."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from genai_server.answer_parts import ToolCallCut
from genai_server.api.generation.answers import Generation
from genai_server.api.generation.generate import generate
from genai_server.api.generation.json_response import built_response
from genai_server.api.generation.ndjson import LINES, LineStream
from genai_server.api.generation.request_context import RequestContext, TheRequestContext
from genai_server.api.middleware.auth import require_admin
from genai_server.api.middleware.body import BodyRoute, lenient_route
from genai_server.api.routes.ollama_models import find_model
from genai_server.api.services import Services, TheServices
from genai_server.errors import AdminForbidden, UnsupportedEndpoint
from genai_server.messages.commands import KeepModel
from genai_server.messages.status_file import ModelState, ModelStatus
from genai_server.ollama_api.answer import AnswerBuilder, Ending
from genai_server.ollama_api.lenient import leave_out
from genai_server.ollama_api.schemas import (
    ChatRequest,
    ErrorResponse,
    GenerateRequest,
    KeptFields,
)
from genai_server.ollama_api.translate import Translation
from genai_server.openai_api.schemas.base import JsonObject

# Seconds; whoever says more means always.
_LONGEST_KEPT = 10 * 365 * 86400.0
ERRORS: dict[int | str, dict[str, Any]] = {code: {"model": ErrorResponse} for code in (400, 403, 404, 500, 503)}
router = APIRouter(
    route_class=lenient_route(leave_out, caps=True, takes_undeclared=True), tags=["ollama"], responses=ERRORS
)
unsupported = APIRouter(route_class=BodyRoute, include_in_schema=False)


@router.post("/api/chat", responses=LINES)
async def chat(body: ChatRequest, request: Request, services: TheServices, context: TheRequestContext) -> Response:
    """Ollama's chat message, in one piece or as lines."""
    return await _response(body, request, services, context, is_empty=not body.messages)


@router.post("/api/generate", responses=LINES)
async def generate_text(
    body: GenerateRequest, request: Request, services: TheServices, context: TheRequestContext
) -> Response:
    """Ollama's answer to a prompt, in one piece or as lines."""
    return await _response(body, request, services, context, is_empty=not body.prompt)


@unsupported.post("/api/create")
@unsupported.post("/api/copy")
@unsupported.post("/api/push")
@unsupported.delete("/api/delete")
@unsupported.get("/api/blobs/{digest}")
@unsupported.post("/api/blobs/{digest}")
async def refuse(request: Request) -> JSONResponse:
    """What would change or send the files of models."""
    raise UnsupportedEndpoint(
        f"{request.scope['route'].path} is not supported: this server does not create, copy, push or delete models; "
        "on its machine genai-server export builds one, and genai-server models lists and removes them"
    )


async def _response(
    body: ChatRequest | GenerateRequest,
    request: Request,
    services: Services,
    context: RequestContext,
    *,
    is_empty: bool,
) -> Response:
    chosen = find_model(services.models, body.model)
    build = AnswerBuilder(body.model or chosen.id, is_chat=isinstance(body, ChatRequest))
    kept = await seconds_to_keep(body, request, services, context, is_all=is_empty and body.seconds_to_keep == 0)
    if is_empty:
        services.drain.require_open()
        context.record.model = chosen.id
        if kept != 0:
            await context.waits_for(services.models.serving(chosen, context.deadline.seconds_left))
        await keep(services, chosen.about, kept)
        return JSONResponse(build.nothing("unload" if kept == 0 else "load"))
    is_streamed = body.stream is not False
    translation = await asyncio.to_thread(Translation, body, chosen.id)
    with context.leniency.in_words(translation.outer_name, translation.outer):
        generation = await generate(services, translation.body, context, is_streamed=is_streamed)
    # Only now: a model that is not to be kept would be unloaded before the request is in it.
    await keep(services, chosen.about, kept)
    if is_streamed:
        return LineStream(generation, _lines(generation, build, services, context))
    (whole,) = await context.waits_for(generation.whole())
    ending = _ending(generation, services, context)
    return await built_response(lambda: build.complete(whole, ending), is_long=bool(body.logprobs))


async def _lines(
    generation: Generation, build: AnswerBuilder, services: Services, context: RequestContext
) -> AsyncGenerator[JsonObject]:
    (answer,) = generation.answers
    async for piece in answer.pieces():
        # A call in which a cut answer ends is shown as far as it goes: the reason of the end says so.
        parts = [part for part in piece.parts if type(part) is not ToolCallCut or not answer.is_cut]
        if (line := build.part(parts, piece.tokens)) is not None:
            yield line
    for line in build.last(_ending(generation, services, context)):
        yield line


def _ending(generation: Generation, services: Services, context: RequestContext) -> Ending:
    (answer,) = generation.answers
    phases = answer.phases
    total = services.clock() - context.record.began
    before = max(0.0, total - answer.timings().total_latency)
    return Ending(answer.reason, answer.usage, total, before + phases.queue, phases.prefill, phases.decode)


async def seconds_to_keep(
    body: KeptFields, request: Request, services: Services, context: RequestContext, *, is_all: bool
) -> float | None:
    """How long the request has its model stay loaded, infinite for always; None if it says nothing, or may not.

    Who may not has the field left out, unless it is all that the request is for. Raises AdminForbidden.
    """
    if body.seconds_to_keep is None:
        return None
    try:
        await require_admin(request, services)
    except AdminForbidden as error:
        if is_all or not context.leniency.leaves_out("keep_alive"):
            raise error.reworded(f"keep_alive: {error.message}", param="keep_alive") from None
        return None
    return body.seconds_to_keep


async def keep(services: Services, about: ModelStatus, seconds: float | None) -> None:
    """Have a model stay loaded for so long without a request, unless nothing is said or it does already."""
    if seconds is None:
        return
    kept = None if seconds > _LONGEST_KEPT else seconds
    if about.idle_unload != kept or about.state in (ModelState.UNLOADED, ModelState.UNLOADING):
        await services.models.command(KeepModel(about.name, kept))
