"""Bodies of OpenAI's Conversations API (https://platform.openai.com/docs/api-reference/conversations)."""

from typing import Annotated

from genai_server.openai_api.schemas.base import Wire, elements
from genai_server.openai_api.schemas.response_items import MOST_ITEMS, InputItem
from genai_server.openai_api.schemas.responses import Metadata


class ConversationRequest(Wire):
    """Body of POST /v1/conversations."""

    items: Annotated[list[InputItem], elements(MOST_ITEMS)] | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Wire):
    """Body of POST /v1/conversations/{id}."""

    metadata: Metadata | None


class ItemsRequest(Wire):
    """Body of POST /v1/conversations/{id}/items."""

    items: Annotated[list[InputItem], elements(MOST_ITEMS, least=1)]
