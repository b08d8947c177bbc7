"""The endpoints /api/chat and /api/generate of Ollama's API, and those that this server refuses."""

import asyncio
from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from genai_server.apis.ollama.keep_alive import keep, load, seconds_to_keep
from genai_server.apis.ollama.leniency import LEFT_OUT
from genai_server.apis.ollama.model_routes import OPERATORS_ERRORS
from genai_server.apis.ollama.response import AnswerBuilder, ending
from genai_server.apis.ollama.schemas import GenerateRequest, OllamaChatRequest
from genai_server.apis.ollama.translate import Translation
from genai_server.errors import UnsupportedEndpoint
from genai_server.generation.answers import Generation
from genai_server.generation.dependencies import RequestContext, RequestContextDep, Services, ServicesDep
from genai_server.generation.generate import generate
from genai_server.http.body_route import BodyRoute, lenient_route
from genai_server.http.json_response import JsonObject, built_response
from genai_server.http.ndjson import LINES, LineStream

router = APIRouter(
    route_class=lenient_route(LEFT_OUT, caps=True, takes_undeclared=True, takes_unknown=True),
    tags=["ollama"],
    responses=OPERATORS_ERRORS,
)
unsupported = APIRouter(route_class=BodyRoute, include_in_schema=False)


@router.post("/api/chat", responses=LINES)
async def chat(
    body: OllamaChatRequest, request: Request, services: ServicesDep, context: RequestContextDep
) -> Response:
    """Generate the answer to a chat, as one object or as a stream of lines."""
    return await _response(body, request, services, context, is_empty=not body.messages)


@router.post("/api/generate", responses=LINES)
async def generate_text(
    body: GenerateRequest, request: Request, services: ServicesDep, context: RequestContextDep
) -> Response:
    """Generate the answer to a prompt, as one object or as a stream of lines."""
    return await _response(body, request, services, context, is_empty=not (body.prompt or body.images))


@unsupported.post("/api/create")
@unsupported.post("/api/copy")
@unsupported.post("/api/push")
@unsupported.delete("/api/delete")
@unsupported.get("/api/blobs/{digest}")
@unsupported.post("/api/blobs/{digest}")
async def refuse(request: Request) -> JSONResponse:
    """Refuse requests that would change or transfer model files."""
    raise UnsupportedEndpoint(
        f"{request.scope['route'].path} is not supported: this server does not create, copy, push or delete models; "
        "use genai-server export and genai-server models on the server instead"
    )


async def _response(
    body: OllamaChatRequest | GenerateRequest,
    request: Request,
    services: Services,
    context: RequestContext,
    *,
    is_empty: bool,
) -> Response:
    chosen = services.models.choose(body.model)
    build = AnswerBuilder(body.model or chosen.id, is_chat=isinstance(body, OllamaChatRequest))
    keep_seconds = await seconds_to_keep(body, request, context, is_all=is_empty and body.seconds_to_keep == 0)
    if is_empty:
        await load(services, context, chosen, keep_seconds)
        return JSONResponse(build.nothing("unload" if keep_seconds == 0 else "load"))
    is_streamed = body.stream is not False
    translation = await asyncio.to_thread(Translation, body, chosen.id)
    context.leniency.note(translation.overridden)
    # The translation has them, and drops the data of their images.
    if isinstance(body, OllamaChatRequest):
        body.messages = None
    else:
        body.images = None
    with context.leniency.with_names(translation.names):
        # Its arguments are an object, so an incomplete call would look like one to execute.
        generation = await generate(
            services, translation.body, context, is_streamed=is_streamed, only_complete_calls=True
        )
    # Set this last: a model with a keep_alive of 0 would otherwise be unloaded before it has the request.
    await keep(services, chosen.about, keep_seconds)
    if is_streamed:
        return LineStream(generation, _lines(generation, build, context))
    (whole,) = await context.run_while_connected(generation.whole())
    end = _ending(generation, context)
    return await built_response(lambda: build.complete(whole, end), is_long=bool(body.logprobs))


async def _lines(generation: Generation, build: AnswerBuilder, context: RequestContext) -> AsyncGenerator[JsonObject]:
    (answer,) = generation.answers
    async for piece in answer.pieces():
        yield build.part(piece.parts, piece.tokens)
    yield build.last(_ending(generation, context))


def _ending(generation: Generation, context: RequestContext) -> JsonObject:
    (answer,) = generation.answers
    return ending(answer.ending.reason, answer.usage, context.record.arrival.elapsed, answer.timings().breakdown)
