"""The endpoints /api/embed and /api/embeddings of Ollama's API; the latter is older."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from genai_server.apis.embeddings.embed import Pooled, embed
from genai_server.apis.embeddings.routes import FEW_NUMBERS
from genai_server.apis.embeddings.schemas import PooledFields
from genai_server.apis.ollama.keep_alive import keep, load, seconds_to_keep
from genai_server.apis.ollama.model_routes import OPERATORS_ERRORS
from genai_server.apis.ollama.schemas import EmbeddingsRequest, EmbedRequest, KeptFields, nanoseconds
from genai_server.generation.dependencies import RequestContext, RequestContextDep, Services, ServicesDep
from genai_server.http.body_route import lenient_route
from genai_server.http.json_response import built_response
from genai_server.http.leniency import LeftOut
from genai_server.model_files.pooling_model import Task

router = APIRouter(
    route_class=lenient_route(LeftOut(), takes_undeclared=True, takes_unknown=True),
    tags=["ollama"],
    responses=OPERATORS_ERRORS,
)
# Truncates texts to the model's maximum length.
_TO_MODEL_LIMIT = -1


@router.post("/api/embed")
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


@router.post("/api/embeddings")
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
    """The embeddings of the texts; None without texts, in which case the model is only loaded or unloaded."""
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
