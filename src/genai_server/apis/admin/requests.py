"""Endpoints about requests: list the running, waiting and ended requests, cancel a request, end the reasoning of a
request so that its model answers, and report requests and tokens by day, API key and model.
"""

import asyncio
import re
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request

from genai_server.apis.admin import engines as engine_calls
from genai_server.apis.admin.engines import admin_router, ask
from genai_server.apis.admin.schemas import (
    CancelledRequest,
    EmptyBody,
    EndedReasoning,
    EndedRequestsResponse,
    RequestsResponse,
    UsageParameters,
    UsageResponse,
)
from genai_server.apis.shared.router import error_responses
from genai_server.generation.dependencies import RequestContextDep, ServicesDep
from genai_server.http.middleware.authentication import rights
from genai_server.messages.admin import ListRequests, RequestState

router = admin_router()
# For the readers of answers, not only for operators.
readers_router = APIRouter(tags=["chat"], responses=error_responses(400, 404, 409, 503))
# Ids of answers have their request's unique id in them.
_ANSWER_ID = re.compile("(?:chatcmpl-|msg_)([0-9a-f]{24})")
# Days of usage that are shown without parameters.
_DAYS = 31


@router.get("/v1/requests", response_model=RequestsResponse)
async def list_requests(services: ServicesDep) -> dict[str, Any]:
    """List the running and waiting requests of all devices and API processes, including those for which the server runs
    a tool now. A request for several answers has an entry for each answer.
    """
    replies = await ask(services.models.engines(), ListRequests)
    entries = [_entry(state, engine.model_name, engine.device) for engine, reply in replies for state in reply.requests]
    # Engines first: a request that is between a tool and an engine meanwhile is listed all the same.
    listed_ids = {entry["unique_id"] for entry in entries}
    at_tools = [request for request in await services.tools.client.find() if request.state.unique_id not in listed_ids]
    return {
        "object": "list",
        "data": [*entries, *(_entry(request.state, request.model, request.device) for request in at_tools)],
    }


@router.get("/v1/requests/ended", response_model=EndedRequestsResponse)
async def list_ended_requests(services: ServicesDep, since: float = 0.0) -> dict[str, Any]:
    """List the last 200 requests of all API processes that have ended or were refused, newest first, without their
    prompts and answers. If `since`, in seconds since 1970, is given, requests that ended before it are left out.
    """
    return {"object": "list", "data": await asyncio.to_thread(services.recent.ended_after, since)}


@router.post("/v1/requests/{request_id}/cancel", response_model=CancelledRequest, responses=error_responses(409))
async def cancel_request(request_id: str, services: ServicesDep, body: EmptyBody | None = None) -> dict[str, Any]:
    """Cancel a request: end all of its answers and the tools that the server runs for it. Its client receives the
    answers as far as they have been generated, with the finish reason `cancelled`.

    `request_id` is the request's `unique_id`, or its `id` if no other request has the same id. If several requests have
    this id, the response is a 409 that lists their unique ids.
    """
    engines, tools = services.models.engines(), services.tools.client
    cancelled = await engine_calls.cancel_request(engines, tools, request_id)
    return {"id": cancelled.request_id, "unique_id": cancelled.unique_id, "object": "request", "cancelled": True}


@readers_router.post("/v1/requests/{request_id}/end_reasoning", response_model=EndedReasoning)
async def end_reasoning(
    request_id: str, request: Request, services: ServicesDep, context: RequestContextDep, body: EmptyBody | None = None
) -> dict[str, Any]:
    """End the reasoning of a running or waiting request, so that the model writes its final answer now.

    Clients can do this for requests with their own API key, operators for all requests. `request_id` is the request's
    `unique_id`, its `id` if no other request has the same id, or the id of an answer such as `chatcmpl-...`. If several
    requests have the id, the response is a 409 that lists their unique ids.
    """
    tenant = None if rights(request).is_admin else context.tenant
    of_answer = _ANSWER_ID.fullmatch(request_id)
    name = request_id if of_answer is None else f"req-{of_answer[1]}"
    ended, has_effect = await engine_calls.end_reasoning(services.models.engines(), name, tenant)
    return {"id": ended.request_id, "unique_id": ended.unique_id, "object": "request", "reasoning_ended": has_effect}


def _entry(state: RequestState, model: str, device: str) -> dict[str, Any]:
    figures = msgspec.structs.asdict(state)
    adapter = figures.pop("adapter")
    where = {"model": model if adapter is None else f"{model}:{adapter}", "device": device}
    names = {"id": figures.pop("request_id"), "unique_id": figures.pop("unique_id")}
    key_name = figures.pop("key_name") or None
    return {**names, "object": "request", "key_name": key_name, **where, **figures}


@router.get("/v1/admin/usage", response_model=UsageResponse)
async def get_usage(query: Annotated[UsageParameters, Query()], services: ServicesDep) -> dict[str, Any]:
    """Report how many requests and tokens each API key used with each model on each day (in UTC), oldest day first.

    `since` and `until` are the first and the last day; by default, the last 31 days are reported. If GENAI_USAGE_FILE
    is set, the numbers are kept when the server stops. Numbers from the last few seconds of other API processes may be
    missing.
    """
    last = query.until or datetime.now(UTC).date()
    first = query.since or max(date.min + timedelta(days=_DAYS), last) - timedelta(days=_DAYS - 1)
    rows = await services.usage.between(first, last)
    entries = [
        {"object": "usage", **key._asdict(), "key_name": key.key_name or None, **counts._asdict()}
        for key, counts in rows
    ]
    return {"object": "list", "data": entries}
