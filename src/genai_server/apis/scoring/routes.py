"""The endpoints /generative_scoring and /classify, as in vLLM, for models that generate text."""

import time

from fastapi.responses import Response

from genai_server.apis.scoring.schemas import (
    ClassifyRequest,
    ClassifyResponse,
    LabelScoreRequest,
    LabelScoreResponse,
)
from genai_server.apis.scoring.score import classify, label_scores
from genai_server.apis.shared.router import VersionedRouter
from genai_server.generation.dependencies import RequestContextDep, ServicesDep
from genai_server.http.body_route import BodyRoute
from genai_server.http.json_response import json_response

router = VersionedRouter(BodyRoute, "scoring", codes=(504,))


@router.post("/v1/generative_scoring", response_model=LabelScoreResponse)
async def generative_scoring(body: LabelScoreRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Get the probability of the first of the given tokens after the query and each item."""
    found = await label_scores(services, body, context, normalizes=True)
    data = [{"index": n, "object": "score", "score": one[0]} for n, one in enumerate(found.probabilities)]
    whole = {"id": context.answer_id("generative-scoring-"), "object": "list", "created": int(time.time())}
    return json_response(whole | {"model": found.model, "data": data, "usage": found.usage})


@router.post("/v1/classify", response_model=ClassifyResponse)
async def classify_texts(body: ClassifyRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Get the most likely of the given labels for each text."""
    found = await classify(services, body, context)
    data = [
        {"index": n, "label": body.labels[one.index(max(one))], "probs": one, "num_classes": len(one)}
        for n, one in enumerate(map(list, found.probabilities))
    ]
    whole = {"id": context.answer_id("classify-"), "object": "list", "created": int(time.time())}
    return json_response(whole | {"model": found.model, "data": data, "usage": found.usage})
