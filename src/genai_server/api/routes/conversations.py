"""OpenAI's /v1/conversations: items that are kept, and that responses go on from and add to."""

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from genai_server.api.generation.json_response import json_response
from genai_server.api.generation.records import Record
from genai_server.api.middleware.auth import TheHolder
from genai_server.api.middleware.body import lenient_route
from genai_server.api.routes.item_pages import items_response, page_response
from genai_server.api.routes.responses import found_items, not_stored
from genai_server.api.services import Services, TheServices
from genai_server.errors import InvalidField
from genai_server.openai_api.lenient import leave_out_of_items
from genai_server.openai_api.response_items import given_items, new_id
from genai_server.openai_api.schemas.base import ErrorResponse, JsonObject
from genai_server.openai_api.schemas.conversations import ConversationRequest, ConversationUpdate, ItemsRequest
from genai_server.openai_api.schemas.response_items import InputItem
from genai_server.openai_api.schemas.responses import InputItemsParameters

router = APIRouter(
    route_class=lenient_route(leave_out_of_items),
    tags=["openai"],
    responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)},
)


@router.post("/v1/conversations")
@router.post("/conversations", include_in_schema=False)
async def create_conversation(
    body: ConversationRequest, services: TheServices, owner: TheHolder, response: Response
) -> dict[str, Any]:
    """A new conversation with these items."""
    store = services.responses
    if not store.is_on:
        raise InvalidField("this server keeps no conversations (GENAI_RESPONSE_STORE_SIZE)", param=None)
    items = await _given(body.items or [], services, owner, "items")
    value = {
        "id": new_id("conv"),
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": body.metadata or {},
    }
    response.headers.update(not_stored(await store.put(Record(value, items, owner))))
    return value


@router.get("/v1/conversations/{conversation_id}")
@router.get("/conversations/{conversation_id}", include_in_schema=False)
async def get_conversation(conversation_id: str, services: TheServices, owner: TheHolder) -> dict[str, Any]:
    """A conversation without its items."""
    return await services.responses.conversation(conversation_id, owner)


@router.post("/v1/conversations/{conversation_id}")
@router.post("/conversations/{conversation_id}", include_in_schema=False)
async def update_conversation(
    conversation_id: str, body: ConversationUpdate, services: TheServices, owner: TheHolder
) -> dict[str, Any]:
    """Replace a conversation's metadata."""
    metadata = body.metadata or {}
    return await services.responses.update_conversation(
        conversation_id, owner, lambda old: {**old, "metadata": metadata}
    )


@router.delete("/v1/conversations/{conversation_id}")
@router.delete("/conversations/{conversation_id}", include_in_schema=False)
async def delete_conversation(conversation_id: str, services: TheServices, owner: TheHolder) -> dict[str, Any]:
    """Remove a conversation with its items; responses that went on from it keep those that they need."""
    await services.responses.delete_conversation(conversation_id, owner)
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.post("/v1/conversations/{conversation_id}/items")
@router.post("/conversations/{conversation_id}/items", include_in_schema=False)
async def add_items(conversation_id: str, body: ItemsRequest, services: TheServices, owner: TheHolder) -> Response:
    """Add items at a conversation's end; returns these."""
    items = await _given(body.items, services, owner, "items")
    await services.responses.add_items(conversation_id, owner, items)
    return await items_response(items)


@router.get("/v1/conversations/{conversation_id}/items")
@router.get("/conversations/{conversation_id}/items", include_in_schema=False)
async def list_items(
    conversation_id: str, query: Annotated[InputItemsParameters, Query()], services: TheServices, owner: TheHolder
) -> Response:
    """A conversation's items, page by page."""
    return await page_response(await services.responses.conversation_items(conversation_id, owner, query))


@router.get("/v1/conversations/{conversation_id}/items/{item_id}")
@router.get("/conversations/{conversation_id}/items/{item_id}", include_in_schema=False)
async def get_item(conversation_id: str, item_id: str, services: TheServices, owner: TheHolder) -> Response:
    """One item of a conversation."""
    return json_response(await services.responses.conversation_item(conversation_id, owner, item_id))


@router.delete("/v1/conversations/{conversation_id}/items/{item_id}")
@router.delete("/conversations/{conversation_id}/items/{item_id}", include_in_schema=False)
async def delete_item(conversation_id: str, item_id: str, services: TheServices, owner: TheHolder) -> dict[str, Any]:
    """Remove one item of a conversation; returns the conversation."""
    return await services.responses.remove_item(conversation_id, owner, item_id)


async def _given(given: Sequence[InputItem], services: Services, owner: str | None, field: str) -> list[JsonObject]:
    kept = await found_items(given, services, owner, field)
    return await asyncio.to_thread(given_items, given, kept, field=field)
