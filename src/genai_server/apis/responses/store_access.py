"""Access of routes to the store of responses and conversations, for the caller of a request."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from fastapi import Depends, Request, Response

from genai_server.apis.responses.item_schemas import InputItem
from genai_server.apis.responses.items import given_items, referenced_ids
from genai_server.apis.responses.store import LatestResponse, ResponseStore
from genai_server.errors import InvalidField
from genai_server.http.json_response import JsonObject, built_response
from genai_server.http.middleware.authentication import KeyHolderDep
from genai_server.http.request_state import Receipt, request_state
from genai_server.store.records import Page

# Response header with the reason why a response was not stored, or not added to its conversation.
NOT_STORED = "x-genai-not-stored"


@dataclass(frozen=True)
class TurnReceipt(Receipt):
    """What is known of a request that came over a WebSocket before the app reads it, and the latest response on that
    connection.
    """

    # The latest response on the connection.
    latest: LatestResponse = field(default_factory=LatestResponse)


@dataclass(frozen=True)
class CallerStore:
    """The store of responses, and the owner whose responses and conversations the client of a request may use."""

    store: ResponseStore
    # Digest of the caller's API key; None without API keys.
    owner: str | None
    # The unique id of the caller's request.
    request: str
    # The latest response on the same WebSocket; None for an HTTP request.
    latest: LatestResponse | None = None

    async def given_items(self, given: str | Sequence[InputItem], field: str) -> list[JsonObject]:
        """Convert the items `given` in the request's field `field` to the form that items have in responses. References
        to items are replaced by the stored items.

        Raises InvalidField and StoreUnavailable.
        """
        try:
            stored = await self.store.find_items(referenced_ids(given), self.owner)
        except InvalidField as error:
            raise error.at(field) from None
        return await asyncio.to_thread(given_items, given, stored, field=field)


async def caller_store(request: Request, owner: KeyHolderDep) -> CallerStore:
    """The store for the client of a request. A FastAPI dependency of the routes."""
    state = request_state(request.scope)
    latest = state.receipt.latest if isinstance(state.receipt, TurnReceipt) else None
    return CallerStore(request.app.state.responses, owner, state.record.unique_id, latest)


# The type of a route's parameter.
StoreDep = Annotated[CallerStore, Depends(caller_store)]


def not_stored(reason: str | None) -> dict[str, str]:
    """A response header with the reason why a response was not stored, or not added to its conversation; empty if there
    is no reason.
    """
    return {} if reason is None else {NOT_STORED: reason.encode("ascii", "backslashreplace").decode()}


async def page_response(page: Page, shown: Callable[[JsonObject], JsonObject] | None = None) -> Response:
    """A response with a page of items in OpenAI's format, encoded in a thread. `shown`, if given, converts each
    item.
    """

    def build() -> JsonObject:
        ids = [id for id, _ in page.items]
        items = [item for _, item in page.items]
        if shown is not None:
            items = [shown(msgspec.json.decode(item) if isinstance(item, msgspec.Raw) else item) for item in items]
        ends = {"first_id": ids[0], "last_id": ids[-1]} if ids else {"first_id": None, "last_id": None}
        return {"object": "list", "data": items, **ends, "has_more": page.has_more}

    return await built_response(build, is_long=True)
