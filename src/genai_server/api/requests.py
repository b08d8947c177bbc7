"""The operator's view of all requests, and the way to end one."""

from typing import Any

import msgspec
from fastapi import APIRouter, Depends

from genai_server.api.auth import require_admin
from genai_server.api.inquiry import ask
from genai_server.api.services import TheServices
from genai_server.engines.client import EngineClient
from genai_server.engines.operator import Operator
from genai_server.errors import RequestNotFound
from genai_server.messages.operator import RequestState
from genai_server.openai_api.schemas.admin import CancelledRequest, NoFields, RequestsResponse
from genai_server.openai_api.schemas.base import ErrorResponse

_MOST_SHOWN = 100

router = APIRouter(
    tags=["admin"],
    dependencies=[Depends(require_admin)],
    responses={code: {"model": ErrorResponse} for code in (400, 403, 404, 503)},
)


@router.get("/v1/requests", response_model=RequestsResponse)
async def list_requests(services: TheServices) -> dict[str, Any]:
    """What runs and waits on all devices, whichever API process has sent it; several answers are several entries."""
    found = await ask(services.models.engines(), Operator.requests)
    entries = [_entry(state, engine) for engine, states in found for state in states]
    return {"object": "list", "data": entries}


@router.post("/v1/requests/{request_id}/cancel", response_model=CancelledRequest)
async def cancel_request(request_id: str, services: TheServices, body: NoFields | None = None) -> dict[str, Any]:
    """End a request, all of its answers: its client gets what there is, with the finish reason `cancelled`."""

    async def cancel(operator: Operator) -> list[RequestState]:
        return await operator.cancel_request(request_id)

    ended = await ask(services.models.engines(), cancel)
    if not any(states for _, states in ended):
        raise RequestNotFound(f"no request {request_id[:_MOST_SHOWN]!r} is running or waiting", param="request_id")
    return {"id": request_id, "object": "request", "cancelled": True}


def _entry(state: RequestState, engine: EngineClient) -> dict[str, Any]:
    figures = msgspec.structs.asdict(state)
    adapter = figures.pop("adapter")
    model = engine.model_name if adapter is None else f"{engine.model_name}:{adapter}"
    where = {"model": model, "device": engine.device}
    return {"id": figures.pop("request_id"), "object": "request", **where, **figures}
