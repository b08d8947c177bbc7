"""OpenAI's /v1/decisions: yes or no, choices and scores about one input, answered with probabilities."""

from fastapi.responses import Response

from genai_server.apis.decisions.decide import decide
from genai_server.apis.decisions.schemas import DecisionRequest, DecisionResponse
from genai_server.apis.shared.router import VersionedRouter
from genai_server.generation.dependencies import TheRequestContext, TheServices
from genai_server.http.body_route import BodyRoute
from genai_server.http.json_response import json_response

router = VersionedRouter(BodyRoute, "openai", codes=(504,))


@router.post("/v1/decisions", response_model=DecisionResponse)
async def create_decision(body: DecisionRequest, services: TheServices, context: TheRequestContext) -> Response:
    """Answer questions about an input by the probabilities of their options, without generating text."""
    decided = await decide(services, body, context)
    return json_response(
        {"model": decided.model, "answers": decided.answers, "usage": decided.usage.to_response_json()}
    )
