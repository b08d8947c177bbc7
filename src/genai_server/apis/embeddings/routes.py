"""OpenAI's /v1/embeddings."""

import base64
import sys
from array import array

from fastapi.responses import Response

from genai_server.apis.embeddings.embed import Pooled, PoolingOptions, embed
from genai_server.apis.embeddings.schemas import EmbeddingRequest, EmbeddingResponse, PooledFields
from genai_server.apis.shared.base import JsonObject
from genai_server.apis.shared.router import VersionedRouter
from genai_server.generation.dependencies import TheRequestContext, TheServices
from genai_server.http.body_route import BodyRoute
from genai_server.http.json_response import built_response

router = VersionedRouter(BodyRoute, "openai", codes=(504,))
# Responses with more numbers are encoded in a thread.
FEW_NUMBERS = 4096


@router.post("/v1/embeddings", response_model=EmbeddingResponse)
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
        lambda: embeddings_body(found, as_base64=as_base64),
        is_long=len(found.vectors) * len(found.vectors[0]) > FEW_NUMBERS,
    )


def options_of(body: PooledFields) -> PoolingOptions:
    """The options of a request body."""
    return PoolingOptions(body.model, body.device, body.truncate_prompt_tokens, body.priority or 0, body.timeout)


def embeddings_body(found: Pooled, *, as_base64: bool) -> JsonObject:
    """OpenAI's list of embeddings, in the order of the texts."""
    entries = [
        {"object": "embedding", "index": index, "embedding": _as_base64(vector) if as_base64 else vector.tolist()}
        for index, vector in enumerate(found.vectors)
    ]
    return {"object": "list", "data": entries, "model": found.model, "usage": found.usage}


def _as_base64(vector: "array[float]") -> str:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector).decode()
