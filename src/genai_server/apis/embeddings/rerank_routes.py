"""/v1/rerank and /v1/score, for reranking models."""

import time

from fastapi import APIRouter
from fastapi.responses import Response

from genai_server.apis.embeddings.embed import PairScores, score
from genai_server.apis.embeddings.response import rerank_body, scores_body
from genai_server.apis.embeddings.routes import options_of
from genai_server.apis.embeddings.schemas import RerankRequest, RerankResponse, ScoreRequest, ScoreResponse
from genai_server.apis.shared.base import ErrorResponse
from genai_server.generation.dependencies import RequestContext, Services, TheRequestContext, TheServices
from genai_server.http.json_response import json_response
from genai_server.http.middleware.body import BodyRoute
from genai_server.text.pooled_texts import Pair

router = APIRouter(
    route_class=BodyRoute,
    tags=["rerank"],
    responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503, 504)},
)


@router.post("/v1/rerank", response_model=RerankResponse, response_model_exclude_none=True)
@router.post("/rerank", include_in_schema=False)
async def rerank(body: RerankRequest, services: TheServices, context: TheRequestContext) -> Response:
    """Jina's rerank API, also used by vLLM and llama.cpp, and version 1 of Cohere's."""
    return _ranked(body, await _scores(body, services, context), context, shows=body.return_documents is not False)


@router.post("/v2/rerank", response_model=RerankResponse, response_model_exclude_none=True)
async def rerank_v2(body: RerankRequest, services: TheServices, context: TheRequestContext) -> Response:
    """Version 2 of Cohere's rerank API: documents are returned only on request."""
    return _ranked(body, await _scores(body, services, context), context, shows=bool(body.return_documents))


@router.post("/v1/score", response_model=ScoreResponse)
@router.post("/score", include_in_schema=False)
async def score_pairs(body: ScoreRequest, services: TheServices, context: TheRequestContext) -> Response:
    """vLLM's score API: score pairs of texts."""
    pairs = [
        Pair(first, second, _place("text_1", body.text_1, number), _place("text_2", body.text_2, number))
        for number, (first, second) in enumerate(body.pairs)
    ]
    found = await score(services, context, pairs, options_of(body), param="text_2", instruction=body.instruction)
    id = f"score-{context.request_id.removeprefix('req-')}"
    return json_response(scores_body(id, int(time.time()), found.model, found.scores, found.num_tokens))


def _place(field: str, given: str | list[str], number: int) -> str:
    """The location of a pair's text in the body."""
    return field if isinstance(given, str) or len(given) == 1 else f"{field}[{number}]"


async def _scores(body: RerankRequest, services: Services, context: RequestContext) -> PairScores:
    return await score(
        services,
        context,
        [Pair(body.query, text, "query", f"documents[{number}]") for number, text in enumerate(body.texts)],
        options_of(body),
        param="documents",
        instruction=body.instruction,
        document_tokens=body.max_tokens_per_doc,
    )


def _ranked(body: RerankRequest, found: PairScores, context: RequestContext, *, shows: bool) -> Response:
    id = f"rerank-{context.request_id.removeprefix('req-')}"
    documents = body.texts if shows else None
    return json_response(
        rerank_body(id, found.model, found.scores, found.num_tokens, top_n=body.top_n, documents=documents)
    )
