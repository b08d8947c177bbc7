"""Documents by their relevance to a query: /v1/rerank and /v1/score, of models for reranking."""

import time

from fastapi import APIRouter
from fastapi.responses import Response

from genai_server.api.generation.embed import PairScores, score
from genai_server.api.generation.json_response import json_response
from genai_server.api.generation.request_context import RequestContext, TheRequestContext
from genai_server.api.middleware.body import BodyRoute
from genai_server.api.routes.embeddings import options_of
from genai_server.api.services import Services, TheServices
from genai_server.openai_api.embedding import rerank_body, scores_body
from genai_server.openai_api.schemas.base import ErrorResponse
from genai_server.openai_api.schemas.embeddings import RerankRequest, RerankResponse, ScoreRequest, ScoreResponse
from genai_server.text.pooled_texts import Pair

router = APIRouter(
    route_class=BodyRoute,
    tags=["rerank"],
    responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503, 504)},
)


@router.post("/v1/rerank", response_model=RerankResponse, response_model_exclude_none=True)
@router.post("/rerank", include_in_schema=False)
async def rerank(body: RerankRequest, services: TheServices, context: TheRequestContext) -> Response:
    """Jina's reranking, as vLLM and llama.cpp have it, and the first version of Cohere's."""
    return _ranked(body, await _scores(body, services, context), context, shows=body.return_documents is not False)


@router.post("/v2/rerank", response_model=RerankResponse, response_model_exclude_none=True)
async def rerank_v2(body: RerankRequest, services: TheServices, context: TheRequestContext) -> Response:
    """The second version of Cohere's reranking: documents are returned only if that is asked for."""
    return _ranked(body, await _scores(body, services, context), context, shows=bool(body.return_documents))


@router.post("/v1/score", response_model=ScoreResponse)
@router.post("/score", include_in_schema=False)
async def score_pairs(body: ScoreRequest, services: TheServices, context: TheRequestContext) -> Response:
    """vLLM's scores of pairs of texts."""
    pairs = [
        Pair(first, second, _place("text_1", body.text_1, number), _place("text_2", body.text_2, number))
        for number, (first, second) in enumerate(body.pairs)
    ]
    found = await score(services, context, pairs, options_of(body), param="text_2", instruction=body.instruction)
    id = f"score-{context.request_id.removeprefix('req-')}"
    return json_response(scores_body(id, int(time.time()), found.model, found.scores, found.num_tokens))


def _place(field: str, given: str | list[str], number: int) -> str:
    """The place of a pair's text in the body."""
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
