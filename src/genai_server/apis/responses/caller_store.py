"""Route dependency: the response store from one caller's point of view."""

from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from genai_server.apis.responses.records import LatestResponse
from genai_server.apis.responses.response_store import ResponseStore
from genai_server.http.middleware.authentication import TheHolder
from genai_server.http.request_state import Receipt, request_state


@dataclass(frozen=True)
class TurnReceipt(Receipt):
    """The receipt of a turn on a WebSocket."""

    # The latest response on the connection.
    latest: LatestResponse = field(default_factory=LatestResponse)


@dataclass(frozen=True)
class CallerStore:
    """The store, and the owner whose responses and conversations the caller may use."""

    store: ResponseStore
    # Digest of the caller's API key; None without API keys.
    owner: str | None
    # The latest response on the same WebSocket; None for an HTTP request.
    latest: LatestResponse | None = None


async def caller_store(request: Request, owner: TheHolder) -> CallerStore:
    """The store for the caller of a request."""
    receipt = request_state(request.scope).receipt
    latest = receipt.latest if isinstance(receipt, TurnReceipt) else None
    return CallerStore(request.app.state.responses, owner, latest)


# The type of a route's parameter.
TheStore = Annotated[CallerStore, Depends(caller_store)]
