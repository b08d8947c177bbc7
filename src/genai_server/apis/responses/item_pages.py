"""Pages of items in OpenAI's format."""

from collections.abc import Callable, Sequence

import msgspec
from fastapi import Response

from genai_server.apis.responses.records import Page
from genai_server.apis.shared.base import JsonObject
from genai_server.http.json_response import built_response


async def page_response(page: Page, shown: Callable[[JsonObject], JsonObject] | None = None) -> Response:
    """A response with these items, each converted by `shown` if given. It is encoded in a thread."""
    return await built_response(lambda: _list(page, shown), is_long=True)


async def items_response(items: Sequence[JsonObject]) -> Response:
    """A response with all of these items on one page."""
    return await page_response(Page([(item["id"], item) for item in items], has_more=False))


def _list(page: Page, shown: Callable[[JsonObject], JsonObject] | None) -> JsonObject:
    ids = [id for id, _ in page.items]
    items = [item for _, item in page.items]
    if shown is not None:
        items = [shown(msgspec.json.decode(item) if isinstance(item, msgspec.Raw) else item) for item in items]
    ends = {"first_id": ids[0], "last_id": ids[-1]} if ids else {"first_id": None, "last_id": None}
    return {"object": "list", "data": items, **ends, "has_more": page.has_more}
