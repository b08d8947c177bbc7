"""OpenAI's /v1/embeddings."""

from fastapi import APIRouter
from fastapi.responses import Response

from genai_server.apis.embeddings.embed import PoolingOptions, embed
from genai_server.apis.embeddings.response import embeddings_body
from genai_server.apis.embeddings.schemas import EmbeddingRequest, EmbeddingResponse, PooledFields
from genai_server.apis.shared.base import ErrorResponse
from genai_server.generation.dependencies import TheRequestContext, TheServices
from genai_server.http.json_response import built_response
from genai_server.http.middleware.body import BodyRoute

router = APIRouter(
    route_class=BodyRoute,
    tags=["openai"],
    responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503, 504)},
)
# Responses with more numbers are encoded in a thread.
FEW_NUMBERS = 4096


@router.post("/v1/embeddings", response_model=EmbeddingResponse)
@router.post("/embeddings", include_in_schema=False)
async def create_embeddings(body: EmbeddingRequest, services: TheServices, context: TheRequestContext) -> Response:
    """OpenAI's embeddings API, for embedding models only."""
    found = await embed(
        services,
        context,
        body.inputs,
        options_of(body),
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
    )
    as_base64 = body.encoding_format == "base64"
    return await built_response(
        lambda: embeddings_body(found.model, found.vectors, found.num_tokens, as_base64=as_base64),
        is_long=len(found.vectors) * len(found.vectors[0]) > FEW_NUMBERS,
    )


def options_of(body: PooledFields) -> PoolingOptions:
    """The options of a request body."""
    return PoolingOptions(body.model, body.device, body.truncate_prompt_tokens, body.priority or 0, body.timeout)
