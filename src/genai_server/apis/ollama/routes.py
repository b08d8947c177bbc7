"""The endpoints of Ollama's API that use a model: /api/chat, /api/generate, /api/embed and the older /api/embeddings;
and the endpoints that this server refuses.

Like Ollama's own decoder, they accept unknown keys at every level, among them options of model loading and memory use.
The field `keep_alive` says how long a model stays loaded, and a request without a prompt only loads or unloads its
model.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from genai_server.apis.embeddings.embed import Pooled, embed
from genai_server.apis.embeddings.routes import FEW_NUMBERS
from genai_server.apis.embeddings.schemas import PooledFields
from genai_server.apis.ollama.model_routes import OPERATORS_ERRORS
from genai_server.apis.ollama.response import AnswerBuilder, ending
from genai_server.apis.ollama.schemas import (
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    KeptFields,
    OllamaChatRequest,
    nanoseconds,
)
from genai_server.apis.ollama.translate import Translation
from genai_server.errors import AdminForbidden, UnsupportedEndpoint
from genai_server.generation.answers import Generation
from genai_server.generation.catalog import ChosenModel
from genai_server.generation.dependencies import RequestContext, RequestContextDep, Services, ServicesDep
from genai_server.generation.generate import generate
from genai_server.http.body_route import BodyRoute, lenient_route
from genai_server.http.json_response import JsonObject, built_response
from genai_server.http.leniency import LeftOut, objects_at
from genai_server.http.middleware.authentication import require_admin
from genai_server.http.streams import LINES, LineStream
from genai_server.messages.server_status import ModelState, ModelStatus
from genai_server.messages.supervisor_protocol import KeepModel
from genai_server.model_files.pooling_model import Task


def _leave_out_calls_of_others(body: Any) -> Iterator[str]:
    """Remove the field `tool_calls` from messages that are not the assistant's. Yields the location of each removed
    field.
    """
    for location, message in objects_at(body, "messages[]"):
        role = message.get("role")
        if message.get("tool_calls") and isinstance(role, str) and role.lower() != "assistant":
            del message["tool_calls"]
            yield f"{location}.tool_calls"


LEFT_OUT = LeftOut(
    # A conversation that is too long is an error; it is never truncated.
    values={"truncate": (True,), "shift": (True,)},
    rules=(_leave_out_calls_of_others,),
)
router = APIRouter(
    route_class=lenient_route(LEFT_OUT, caps=True, takes_undeclared=True, takes_unknown=True),
    tags=["ollama"],
    responses=OPERATORS_ERRORS,
)
unsupported = APIRouter(route_class=BodyRoute, include_in_schema=False)
embed_router = APIRouter(
    route_class=lenient_route(LeftOut(), takes_undeclared=True, takes_unknown=True),
    tags=["ollama"],
    responses=OPERATORS_ERRORS,
)
# Truncates texts to the model's maximum length.
_TO_MODEL_LIMIT = -1
# More seconds than this mean forever.
_MAX_KEPT = 10 * 365 * 86400.0


async def seconds_to_keep(body: KeptFields, request: Request, context: RequestContext, *, is_all: bool) -> float | None:
    """For how many seconds the model stays loaded after the request: infinite for "always"; None if the request does
    not say.

    Only operators may use the field. For other clients it is ignored; AdminForbidden is raised instead if the request
    does nothing else (`is_all`) or if GENAI_STRICT is set.
    """
    if body.seconds_to_keep is None:
        return None
    try:
        await require_admin(request)
    except AdminForbidden as error:
        if is_all or not context.leniency.leave_out("keep_alive"):
            raise error.at("keep_alive") from None
        return None
    return body.seconds_to_keep


async def keep(services: Services, status: ModelStatus, seconds: float | None) -> None:
    """Set for how many seconds a model stays loaded without requests. Does nothing if `seconds` is None or the value
    that the model already has.
    """
    if seconds is None:
        return
    limit = None if seconds > _MAX_KEPT else seconds
    if status.idle_unload != limit or status.state in (ModelState.UNLOADED, ModelState.UNLOADING):
        await services.models.command(KeepModel(status.name, limit))


async def load(services: Services, context: RequestContext, chosen: ChosenModel, seconds: float | None) -> None:
    """Load a model for a request without a prompt, and set for how many `seconds` it stays loaded. With 0 it is
    unloaded instead.
    """
    services.drain.require_open()
    context.record.model = chosen.id
    if seconds != 0:
        with context.record.arrival.loading():
            await context.run_while_connected(services.models.serving(chosen, context.deadline.seconds_left))
    await keep(services, chosen.about, seconds)


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
        # Arguments of tool calls are objects in Ollama's format, so an incomplete call would look like a complete one.
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


@embed_router.post("/api/embed")
async def embed_texts(
    body: EmbedRequest, request: Request, services: ServicesDep, context: RequestContextDep
) -> Response:
    """Compute embeddings. A request without a text only loads the model, or unloads it if `keep_alive` is 0."""
    truncates, dimensions = body.truncate is not False, body.dimensions or None
    found = await _embeddings(body, body.texts, request, services, context, truncates=truncates, dimensions=dimensions)
    vectors = [] if found is None else found.vectors
    arrival = context.record.arrival
    total = arrival.elapsed
    return await built_response(
        lambda: {
            "model": body.model or context.record.model,
            "embeddings": [list(vector) for vector in vectors],
            "total_duration": nanoseconds(total),
            "load_duration": nanoseconds(arrival.load),
            "prompt_eval_count": 0 if found is None else found.num_tokens,
        },
        is_long=sum(map(len, vectors)) > FEW_NUMBERS,
    )


@embed_router.post("/api/embeddings")
async def embed_text(
    body: EmbeddingsRequest, request: Request, services: ServicesDep, context: RequestContextDep
) -> Response:
    """Compute the embedding of one text. This is Ollama's older version of /api/embed."""
    texts = [body.prompt] if body.prompt else []
    found = await _embeddings(body, texts, request, services, context)
    return await built_response(lambda: {"embedding": [] if found is None else list(found.vectors[0])}, is_long=False)


async def _embeddings(
    body: KeptFields,
    texts: Sequence[str],
    request: Request,
    services: Services,
    context: RequestContext,
    *,
    truncates: bool = True,
    dimensions: int | None = None,
) -> Pooled | None:
    """The embeddings of the texts; None without texts, in which case the model is only loaded or unloaded.

    `truncates` says whether texts that are too long are truncated or refused. `dimensions` is the length of the
    vectors; None for the model's own.
    """
    name = None if body.model is None else services.models.choose(body.model).id
    chosen = services.models.choose_for(name, Task.EMBED)
    keep_seconds = await seconds_to_keep(body, request, context, is_all=not texts and body.seconds_to_keep == 0)
    if not texts:
        await load(services, context, chosen, keep_seconds)
        return None
    fields = {"model": chosen.id, "truncate_prompt_tokens": _TO_MODEL_LIMIT if truncates else None}
    asked = PooledFields.model_validate(fields)
    found = await embed(services, context, texts, asked, dimensions=dimensions, remedy="truncate: true")
    await keep(services, chosen.about, keep_seconds)
    return found
