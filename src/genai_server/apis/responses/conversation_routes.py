"""The endpoints below /v1/conversations of OpenAI's API: create, read, change and delete conversations and their items.

A conversation is a stored list of items (messages, tool calls and so on). A response of /v1/responses may continue it,
and its input and output are then appended to the list.
"""

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
    """Body of POST /v1/conversations, which creates a conversation: its first items and its metadata, both optional."""

    items: Annotated[list[InputItem], elements(MAX_ITEMS)] | None = None
    metadata: Metadata | None = None


class ConversationUpdate(StrictModel):
    """Body of POST /v1/conversations/{id}: the metadata that replaces the conversation's metadata; null removes it."""

    metadata: Metadata | None


class ItemsRequest(StrictModel):
    """Body of POST /v1/conversations/{id}/items: at least one item to append to the conversation."""

    items: Annotated[list[InputItem], elements(MAX_ITEMS, min_length=1)]


@router.post("/v1/conversations")
async def create_conversation(body: ConversationRequest, stored: StoreDep) -> dict[str, Any]:
    """Create a conversation that consists of the body's items. Returns the conversation object, without its items."""
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
    """Return a conversation object: its id, time of creation and metadata. The items have an endpoint of their own."""
    return await stored.store.conversation(conversation_id, stored.owner)


@router.post("/v1/conversations/{conversation_id}")
async def update_conversation(conversation_id: str, body: ConversationUpdate, stored: StoreDep) -> dict[str, Any]:
    """Replace the metadata of a conversation by those of the body. Returns the changed conversation object, without
    items.
    """
    metadata = body.metadata or {}
    return await stored.store.update_conversation(
        conversation_id, stored.owner, lambda old: {**old, "metadata": metadata}
    )


@router.delete("/v1/conversations/{conversation_id}")
async def delete_conversation(conversation_id: str, stored: StoreDep) -> dict[str, Any]:
    """Delete a conversation and its items, and confirm the deletion. Responses that continued the conversation keep the
    items that they need.
    """
    await stored.store.delete_conversation(conversation_id, stored.owner)
    return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}


@router.post("/v1/conversations/{conversation_id}/items")
async def add_items(conversation_id: str, body: ItemsRequest, stored: StoreDep) -> Response:
    """Append the body's items to the end of a conversation. Returns a list of only these items, which now have ids."""
    items = await stored.to_response_items(body.items, "items")
    await stored.store.add_items(conversation_id, stored.owner, items)
    return await page_response(Page([(item["id"], item) for item in items], has_more=False))


@router.get("/v1/conversations/{conversation_id}/items")
async def list_items(
    conversation_id: str, query: Annotated[InputItemsParameters, Query()], stored: StoreDep
) -> Response:
    """Return one page of the items of a conversation: by default the 20 newest, the newest one first. The query
    parameters `limit`, `order` and `after` select another page.
    """
    return await page_response(await stored.store.page("conversation", conversation_id, stored.owner, query))


@router.get("/v1/conversations/{conversation_id}/items/{item_id}")
async def get_item(conversation_id: str, item_id: str, stored: StoreDep) -> Response:
    """Return the item with the id `item_id` of a conversation. The error is `conversation_not_found` if there is no
    such item.
    """
    return json_response(await stored.store.conversation_item(conversation_id, stored.owner, item_id))


@router.delete("/v1/conversations/{conversation_id}/items/{item_id}")
async def delete_item(conversation_id: str, item_id: str, stored: StoreDep) -> dict[str, Any]:
    """Delete the item with the id `item_id` of a conversation. Returns the conversation object, without its items."""
    return await stored.store.remove_item(conversation_id, stored.owner, item_id)
