"""The endpoint /v1/decisions of OpenAI's API: questions about one input, answered with the probabilities of their
options.
"""

from typing import Annotated

from fastapi.responses import Response
from pydantic import Discriminator, Tag, TypeAdapter

from genai_server.apis.decisions.decide import decide
from genai_server.apis.decisions.schemas import DecisionRequest, DecisionResponse, compact
from genai_server.apis.decisions.sglang import SglangDecisionRequest, SglangDecisionResponse, form_of_body
from genai_server.apis.shared.router import VersionedRouter
from genai_server.generation.dependencies import RequestContextDep, ServicesDep
from genai_server.http.body_route import BodyRoute, validated
from genai_server.http.json_response import json_response

AnyDecisionRequest = Annotated[
    Annotated[DecisionRequest, Tag("openai")] | Annotated[SglangDecisionRequest, Tag("sglang")],
    Discriminator(form_of_body),
]
_OPENAI_FORM = TypeAdapter(DecisionRequest)
router = VersionedRouter(BodyRoute, "openai", codes=(504,))


@router.post("/v1/decisions", response_model=DecisionResponse | SglangDecisionResponse)
async def create_decision(body: AnyDecisionRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Answer questions about an input by the probabilities of their options, without generating text."""
    if isinstance(body, SglangDecisionRequest):
        request = validated(_OPENAI_FORM, body.openai_form(compact))
        found = await decide(services, request, context)
        whole = {"object": "decisions", "model": found.model, "answers": body.answers(found.answers)}
        return json_response(whole | {"usage": found.usage.to_json()})
    found = await decide(services, body, context)
    return json_response({"model": found.model, "answers": found.answers, "usage": found.usage.to_response_json()})
