"""Bodies of OpenAI's Conversations API (https://platform.openai.com/docs/api-reference/conversations)."""

from typing import Annotated

from genai_server.apis.responses.item_schemas import MAX_ITEMS, InputItem
from genai_server.apis.responses.schemas import Metadata
from genai_server.apis.shared.base import Wire, elements


class ConversationRequest(Wire):
    """Body of POST /v1/conversations."""

    items: Annotated[list[InputItem], elements(MAX_ITEMS)] | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Wire):
    """Body of POST /v1/conversations/{id}."""

    metadata: Metadata | None


class ItemsRequest(Wire):
    """Body of POST /v1/conversations/{id}/items."""

    items: Annotated[list[InputItem], elements(MAX_ITEMS, min_length=1)]
