"""OpenAI's /v1/responses: responses that are kept, and that later requests continue."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from genai_server.api.generation.generate import generate
from genai_server.api.generation.json_response import built_response
from genai_server.api.generation.prompts import encode_chat
from genai_server.api.generation.request_context import RequestContext, TheRequestContext
from genai_server.api.generation.response_store import KeptResponse
from genai_server.api.generation.running_response import RunningResponse
from genai_server.api.generation.sse import STREAMS, EventStream
from genai_server.api.leniency import TheLeniency
from genai_server.api.middleware.auth import TheHolder
from genai_server.api.middleware.body import lenient_route
from genai_server.api.services import Services, TheServices
from genai_server.errors import InvalidField, PreviousNotFound, ResponseNotFound
from genai_server.openai_api.lenient import leave_out
from genai_server.openai_api.response_builder import ResponseBuilder
from genai_server.openai_api.response_items import given_items, referenced_ids
from genai_server.openai_api.responses import namespaces, new_response, outer_error, outer_name, to_chat
from genai_server.openai_api.schemas.base import ErrorResponse, JsonObject
from genai_server.openai_api.schemas.chat import ChatParameters
from genai_server.openai_api.schemas.responses import (
    ENCRYPTED_REASONING,
    InputItemsParameters,
    InputTokens,
    ResponsesRequest,
    RetrieveParameters,
)
from genai_server.quoted_values import quoted

router = APIRouter(
    route_class=lenient_route(leave_out),
    tags=["openai"],
    responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)},
)


@router.post("/v1/responses", responses=STREAMS)
@router.post("/responses", include_in_schema=False)
async def create_response(
    body: ResponsesRequest,
    services: TheServices,
    context: TheRequestContext,
    owner: TheHolder,
) -> Response:
    """OpenAI's response, in one piece or as a stream of events."""
    running = await _start(body, services, context, owner)
    if body.stream:
        return EventStream(running, running.events(), named=True, tell_error=running.fail)
    try:
        whole = await running.whole(context)
        return await built_response(lambda: whole, is_long=True)
    finally:
        running.close()


@router.post("/v1/responses/input_tokens", response_model=InputTokens)
@router.post("/responses/input_tokens", include_in_schema=False)
async def count_input_tokens(
    body: ResponsesRequest, services: TheServices, owner: TheHolder, leniency: TheLeniency
) -> InputTokens:
    """The number of tokens of this response's prompt; needs no engine, and keeps nothing."""
    codec = (await services.served(body.model)).codec
    _, chat = await _conversation(body, services, owner)
    with leniency.in_words(outer_name, outer_error):
        return InputTokens(input_tokens=len(await encode_chat(chat, codec, leniency)))


@router.get("/v1/responses/{response_id}")
@router.get("/responses/{response_id}", include_in_schema=False)
async def get_response(
    response_id: str, query: Annotated[RetrieveParameters, Query()], services: TheServices, owner: TheHolder
) -> dict[str, Any]:
    """A response as it is now."""
    return services.responses.get(response_id, owner).response


@router.delete("/v1/responses/{response_id}")
@router.delete("/responses/{response_id}", include_in_schema=False)
async def delete_response(response_id: str, services: TheServices, owner: TheHolder) -> dict[str, Any]:
    """Remove a response; responses that continued it keep the items that they need."""
    services.responses.delete(response_id, owner)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel")
@router.post("/responses/{response_id}/cancel", include_in_schema=False)
async def cancel_response(response_id: str, services: TheServices, owner: TheHolder) -> dict[str, Any]:
    """End a running response; returns it with its partial answer."""
    kept = services.responses.get(response_id, owner)
    kept.cancel()
    return kept.response


@router.get("/v1/responses/{response_id}/input_items")
@router.get("/responses/{response_id}/input_items", include_in_schema=False)
async def list_input_items(
    response_id: str, query: Annotated[InputItemsParameters, Query()], services: TheServices, owner: TheHolder
) -> dict[str, Any]:
    """The items that a response was made from, those of earlier turns included, page by page."""
    items = services.responses.get(response_id, owner).items
    if query.order == "desc":
        items = items[::-1]
    if query.after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == query.after]
        if not places:
            raise InvalidField(f"after must be the id of an input item, given {quoted(query.after)}", param="after")
        items = items[places[0] + 1 :]
    page = items[: query.limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": len(items) > len(page)}


async def _start(
    body: ResponsesRequest, services: Services, context: RequestContext, owner: str | None
) -> RunningResponse:
    """Raises RequestError, which names the field that the client gave, and Unavailable."""
    store = services.responses
    if body.store and not store.is_on:
        raise InvalidField("store must not be true: this server keeps no responses", param="store")
    items, chat = await _conversation(body, services, owner)
    with context.leniency.in_words(outer_name, outer_error):
        generation = await generate(services, chat, context, is_streamed=bool(body.stream))
    is_stored = store.is_on and body.store is not False
    begun = new_response(
        body,
        model=generation.model,
        sampling=generation.sampling,
        created=int(time.time()),
        is_stored=is_stored,
    )
    build = ResponseBuilder(
        begun, is_encrypted=ENCRYPTED_REASONING in (body.include or []), namespaces=namespaces(body)
    )
    return RunningResponse(
        generation,
        build,
        items,
        store if is_stored else None,
        owner=owner,
        with_metrics=bool(body.include_metrics),
    )


async def _conversation(
    body: ResponsesRequest, services: Services, owner: str | None
) -> tuple[list[JsonObject], ChatParameters]:
    """The items of all turns, and the chat that they make. Raises InvalidField."""
    kept = services.responses.find_items(referenced_ids(body.input), owner)
    earlier = _earlier(body, services, owner)

    def conversation() -> tuple[list[JsonObject], ChatParameters]:
        items = [*earlier, *given_items(body.input, kept)]
        return items, to_chat(body, items)

    return await asyncio.to_thread(conversation)


def _earlier(body: ResponsesRequest, services: Services, owner: str | None) -> list[JsonObject]:
    """The items of earlier turns. Raises PreviousNotFound, and InvalidField for a response that still runs."""
    if body.previous_response_id is None:
        return []
    try:
        kept: KeptResponse = services.responses.get(body.previous_response_id, owner)
    except ResponseNotFound as error:
        raise PreviousNotFound(error.message, param="previous_response_id") from None
    response = kept.response
    if response["status"] == "in_progress":
        raise InvalidField(
            f"previous_response_id {quoted(body.previous_response_id)} is still in progress",
            param="previous_response_id",
        )
    return [*kept.items, *response["output"]]
