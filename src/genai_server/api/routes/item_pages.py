"""Pages of the items of a conversation."""

from collections.abc import Sequence

from genai_server.errors import InvalidField
from genai_server.openai_api.schemas.base import JsonObject
from genai_server.openai_api.schemas.responses import InputItemsParameters
from genai_server.quoted_values import quoted


def item_page(items: Sequence[JsonObject], query: InputItemsParameters) -> JsonObject:
    """The page that a query asks for. Raises InvalidField for a place that is not there."""
    items = items[::-1] if query.order == "desc" else items
    if query.after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == query.after]
        if not places:
            raise InvalidField(f"after must be the id of an input item, given {quoted(query.after)}", param="after")
        items = items[places[0] + 1 :]
    return item_list(items[: query.limit], has_more=len(items) > query.limit)


def item_list(page: Sequence[JsonObject], *, has_more: bool = False) -> JsonObject:
    """OpenAI's form of a list."""
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": list(page), **ends, "has_more": has_more}
