"""The endpoint /v1/conversations of OpenAI's API: stored lists of items that responses continue and append to."""

import time
from typing import Annotated, Any

from fastapi import Query, Response

from genai_server.apis.responses.item_schemas import MAX_ITEMS, InputItem
from genai_server.apis.responses.items import new_id
from genai_server.apis.responses.leniency import LEFT_OUT_OF_ITEMS, convert_items
from genai_server.apis.responses.schemas import InputItemsParameters
from genai_server.apis.responses.store import StoreDep, page_response
from genai_server.apis.shared.router import VersionedRouter
from genai_server.errors import InvalidField
from genai_server.generation.parameters.base import Metadata, StrictModel, elements
from genai_server.http.body_route import lenient_route
from genai_server.http.json_response import json_response
from genai_server.store.records import Page, Record

router = VersionedRouter(lenient_route(LEFT_OUT_OF_ITEMS, convert=convert_items), "openai")


class ConversationRequest(StrictModel):
    """Body of POST /v1/conversations."""

    items: Annotated[list[InputItem], elements(MAX_ITEMS)] | None = None
    metadata: Metadata | None = None


class ConversationUpdate(StrictModel):
    """Body of POST /v1/conversations/{id}."""

    metadata: Metadata | None


class ItemsRequest(StrictModel):
    """Body of POST /v1/conversations/{id}/items."""

    items: Annotated[list[InputItem], elements(MAX_ITEMS, min_length=1)]


@router.post("/v1/conversations")
async def create_conversation(body: ConversationRequest, stored: StoreDep) -> dict[str, Any]:
    """Create a conversation with these items."""
    store = stored.store
    if not store.is_on:
        raise InvalidField(None, "this server does not store conversations (GENAI_RESPONSE_STORE_SIZE)")
    items = await stored.to_response_items(body.items or [], "items")
    value = {
        "id": new_id("conv"),
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": body.metadata or {},
    }
    await store.put(Record(value, items, stored.owner))
    return value


@router.get("/v1/conversations/{conversation_id}")
async def get_conversation(conversation_id: str, stored: StoreDep) -> dict[str, Any]:
    """Get a conversation without its items."""
    return await stored.store.conversation(conversation_id, stored.owner)


@router.post("/v1/conversations/{conversation_id}")
async def update_conversation(conversation_id: str, body: ConversationUpdate, stored: StoreDep) -> dict[str, Any]:
    """Replace the metadata of a conversation."""
    metadata = body.metadata or {}
    return await stored.store.update_conversation(
        conversation_id, stored.owner, lambda old: {**old, "metadata": metadata}
    )


@router.delete("/v1/conversations/{conversation_id}")
async def delete_conversation(conversation_id: str, stored: StoreDep) -> dict[str, Any]:
    """Delete a conversation and its items. Responses that continued the conversation keep the items that they need."""
    await stored.store.delete_conversation(conversation_id, stored.owner)
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.post("/v1/conversations/{conversation_id}/items")
async def add_items(conversation_id: str, body: ItemsRequest, stored: StoreDep) -> Response:
    """Append items to a conversation; returns the new items."""
    items = await stored.to_response_items(body.items, "items")
    await stored.store.add_items(conversation_id, stored.owner, items)
    return await page_response(Page([(item["id"], item) for item in items], has_more=False))


@router.get("/v1/conversations/{conversation_id}/items")
async def list_items(
    conversation_id: str, query: Annotated[InputItemsParameters, Query()], stored: StoreDep
) -> Response:
    """List the items of a conversation page by page."""
    return await page_response(await stored.store.page("conversation", conversation_id, stored.owner, query))


@router.get("/v1/conversations/{conversation_id}/items/{item_id}")
async def get_item(conversation_id: str, item_id: str, stored: StoreDep) -> Response:
    """Get one item of a conversation."""
    return json_response(await stored.store.conversation_item(conversation_id, stored.owner, item_id))


@router.delete("/v1/conversations/{conversation_id}/items/{item_id}")
async def delete_item(conversation_id: str, item_id: str, stored: StoreDep) -> dict[str, Any]:
    """Delete one item of a conversation; returns the conversation."""
    return await stored.store.remove_item(conversation_id, stored.owner, item_id)
