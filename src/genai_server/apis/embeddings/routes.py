"""The endpoint /v1/embeddings of OpenAI's API, and /v1/rerank and /v1/score for reranking models."""

import base64
import sys
import time
from array import array
from collections.abc import Sequence

from fastapi.responses import Response

from genai_server.apis.embeddings.embed import Pooled, embed, score
from genai_server.apis.embeddings.schemas import (
    RERANKING,
    AnyScoreRequest,
    EmbeddingRequest,
    EmbeddingResponse,
    LabelScoresResponse,
    RerankRequest,
    RerankResponse,
    ScoreResponse,
)
from genai_server.apis.scoring import LabelScoreRequest, label_scores
from genai_server.apis.shared.router import VersionedRouter
from genai_server.generation.dependencies import RequestContext, RequestContextDep, Services, ServicesDep
from genai_server.http.body_route import BodyRoute, lenient_route
from genai_server.http.json_response import JsonObject, built_response, json_response
from genai_server.text.pooled_texts import Pair

router = VersionedRouter(BodyRoute, "openai", codes=(504,))
rerank_router = VersionedRouter(lenient_route(RERANKING), "rerank", codes=(504,))
# Responses with more numbers are encoded in a thread.
FEW_NUMBERS = 4096


@router.post("/v1/embeddings", response_model=EmbeddingResponse)
@router.post("/api/v0/embeddings", include_in_schema=False)  # LM Studio's name
async def create_embeddings(body: EmbeddingRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Compute embeddings. Needs an embedding model."""
    pooled = await embed(services, context, body.inputs, body, dimensions=body.dimensions, prompt_name=body.prompt_name)
    as_base64 = body.encoding_format == "base64"
    return await built_response(
        lambda: embeddings_body(pooled, as_base64=as_base64),
        is_long=len(pooled.vectors) * len(pooled.vectors[0]) > FEW_NUMBERS,
    )


def embeddings_body(pooled: Pooled, *, as_base64: bool) -> JsonObject:
    """OpenAI's response body with the embeddings in the order of the texts, as lists of numbers or in base64."""
    entries = [
        {"object": "embedding", "index": index, "embedding": _as_base64(vector) if as_base64 else vector.tolist()}
        for index, vector in enumerate(pooled.vectors)
    ]
    return {"object": "list", "data": entries, "model": pooled.model, "usage": pooled.usage}


def _as_base64(vector: "array[float]") -> str:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector).decode()


@rerank_router.post("/v1/rerank", response_model=RerankResponse, response_model_exclude_none=True)
async def rerank(body: RerankRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Sort documents by relevance. This is Jina's rerank API, which vLLM and llama.cpp also have, and version 1 of
    Cohere's.
    """
    return await _ranked(body, services, context, shows=body.return_documents is not False)


@rerank_router.post("/v2/rerank", response_model=RerankResponse, response_model_exclude_none=True)
async def rerank_v2(body: RerankRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Sort documents by relevance. This is version 2 of Cohere's rerank API, which returns the documents only on
    request.
    """
    return await _ranked(body, services, context, shows=bool(body.return_documents))


@rerank_router.post("/v1/score", response_model=ScoreResponse | LabelScoresResponse)
async def score_pairs(body: AnyScoreRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Score pairs of texts, as in vLLM's API, or get the probabilities of given tokens after each item, as in
    SGLang's.
    """
    if isinstance(body, LabelScoreRequest):
        scored = await label_scores(services, body, context, normalizes=False)
        whole = {"object": "scoring", "model": scored.model, "scores": scored.probabilities}
        return json_response(whole | {"usage": scored.usage})
    pairs = [
        Pair(first, second, _place("text_1", body.text_1, number), _place("text_2", body.text_2, number))
        for number, (first, second) in enumerate(body.pairs)
    ]
    pooled = await score(services, context, pairs, body, param="text_2", instruction=body.instruction)
    return json_response(scores_body(context.answer_id("score-"), int(time.time()), pooled))


def _place(field: str, given: str | list[str], number: int) -> str:
    """Where the text of pair `number` is in the body, such as `text_2[3]`, for error messages.

    `given` is the value of the field `field`. A single text, which belongs to all pairs, has no index.
    """
    return field if isinstance(given, str) or len(given) == 1 else f"{field}[{number}]"


async def _ranked(body: RerankRequest, services: Services, context: RequestContext, *, shows: bool) -> Response:
    pooled = await score(
        services,
        context,
        [Pair(body.query, text, "query", f"documents[{number}]") for number, text in enumerate(body.texts)],
        body,
        param="documents",
        instruction=body.instruction,
        document_tokens=body.max_tokens_per_doc,
    )
    documents = body.texts if shows else None
    return json_response(rerank_body(context.answer_id("rerank-"), pooled, top_n=body.top_n, documents=documents))


def rerank_body(id: str, pooled: Pooled, *, top_n: int | None, documents: Sequence[str] | None) -> JsonObject:
    """The response body in Jina's format, best document first, with the fields that Cohere's clients read.

    At most `top_n` documents are included, or all with None. `documents`, if given, are the texts to return with the
    results.
    """
    scores = pooled.scores
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[: top_n or None]
    results: list[JsonObject] = [{"index": index, "relevance_score": scores[index]} for index in ranked]
    if documents is not None:
        for result in results:
            result["document"] = {"text": documents[result["index"]]}
    meta = {"tokens": {"input_tokens": pooled.num_tokens, "output_tokens": 0}}
    whole = {"id": id, "object": "list", "model": pooled.model, "results": results}
    return whole | {"usage": pooled.usage, "meta": meta}


def scores_body(id: str, created: int, pooled: Pooled) -> JsonObject:
    """The response body in vLLM's format, with the scores in the order of the pairs. `created` is in seconds since
    1970.
    """
    entries = [{"object": "score", "index": index, "score": score} for index, score in enumerate(pooled.scores)]
    whole = {"id": id, "object": "list", "created": created, "model": pooled.model, "data": entries}
    return whole | {"usage": pooled.usage}
