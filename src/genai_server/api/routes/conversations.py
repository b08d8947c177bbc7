"""OpenAI's /v1/conversations: items that are kept, and that responses go on from and add to."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from genai_server.api.generation.records import Record
from genai_server.api.middleware.auth import TheHolder
from genai_server.api.middleware.body import lenient_route
from genai_server.api.routes.item_pages import item_list, item_page
from genai_server.api.routes.responses import not_stored
from genai_server.api.services import Services, TheServices
from genai_server.errors import ConversationNotFound, InvalidField
from genai_server.openai_api.lenient import leave_out_of_items
from genai_server.openai_api.response_items import given_items, new_id, referenced_ids
from genai_server.openai_api.schemas.base import ErrorResponse, JsonObject
from genai_server.openai_api.schemas.conversations import ConversationRequest, ConversationUpdate, ItemsRequest
from genai_server.openai_api.schemas.response_items import InputItem
from genai_server.openai_api.schemas.responses import InputItemsParameters
from genai_server.quoted_values import quoted

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
    return (await services.responses.conversation(conversation_id, owner)).value


@router.post("/v1/conversations/{conversation_id}")
@router.post("/conversations/{conversation_id}", include_in_schema=False)
async def update_conversation(
    conversation_id: str, body: ConversationUpdate, services: TheServices, owner: TheHolder
) -> dict[str, Any]:
    """Replace a conversation's metadata."""
    metadata = body.metadata or {}
    changed = await services.responses.change(
        conversation_id, owner, lambda old: replace(old, value={**old.value, "metadata": metadata})
    )
    return changed.value


@router.delete("/v1/conversations/{conversation_id}")
@router.delete("/conversations/{conversation_id}", include_in_schema=False)
async def delete_conversation(conversation_id: str, services: TheServices, owner: TheHolder) -> dict[str, Any]:
    """Remove a conversation with its items; responses that went on from it keep those that they need."""
    await services.responses.delete_conversation(conversation_id, owner)
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.post("/v1/conversations/{conversation_id}/items")
@router.post("/conversations/{conversation_id}/items", include_in_schema=False)
async def add_items(
    conversation_id: str, body: ItemsRequest, services: TheServices, owner: TheHolder
) -> dict[str, Any]:
    """Add items at a conversation's end; returns these."""
    items = await _given(body.items, services, owner, "items")
    await services.responses.change(conversation_id, owner, lambda old: replace(old, items=[*old.items, *items]))
    return item_list(items)


@router.get("/v1/conversations/{conversation_id}/items")
@router.get("/conversations/{conversation_id}/items", include_in_schema=False)
async def list_items(
    conversation_id: str, query: Annotated[InputItemsParameters, Query()], services: TheServices, owner: TheHolder
) -> dict[str, Any]:
    """A conversation's items, page by page."""
    return item_page((await services.responses.conversation(conversation_id, owner)).items, query)


@router.get("/v1/conversations/{conversation_id}/items/{item_id}")
@router.get("/conversations/{conversation_id}/items/{item_id}", include_in_schema=False)
async def get_item(conversation_id: str, item_id: str, services: TheServices, owner: TheHolder) -> dict[str, Any]:
    """One item of a conversation."""
    record = await services.responses.conversation(conversation_id, owner)
    return record.items[_place(record, item_id)]


@router.delete("/v1/conversations/{conversation_id}/items/{item_id}")
@router.delete("/conversations/{conversation_id}/items/{item_id}", include_in_schema=False)
async def delete_item(conversation_id: str, item_id: str, services: TheServices, owner: TheHolder) -> dict[str, Any]:
    """Remove one item of a conversation; returns the conversation."""

    def without(old: Record) -> Record:
        place = _place(old, item_id)
        return replace(old, items=[*old.items[:place], *old.items[place + 1 :]])

    return (await services.responses.change(conversation_id, owner, without)).value


async def _given(given: Sequence[InputItem], services: Services, owner: str | None, field: str) -> list[JsonObject]:
    kept = await services.responses.find_items(referenced_ids(given), owner)
    return await asyncio.to_thread(given_items, given, kept, field=field)


def _place(record: Record, id: str) -> int:
    for place, item in enumerate(record.items):
        if item["id"] == id:
            return place
    raise ConversationNotFound(f"conversation {record.id} has no item {quoted(id)}", param="item_id")
