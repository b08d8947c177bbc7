"""OpenAI's /v1/responses: answers that are kept, and that later requests go on from."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from genai_server.api.auth import TheHolder
from genai_server.api.caller import Caller, TheCaller
from genai_server.api.response_store import KeptResponse
from genai_server.api.running_response import RunningResponse
from genai_server.api.services import Services, TheServices
from genai_server.api.sse import STREAMS, EventStream
from genai_server.api.start import encode_chat, find_served, start_chat
from genai_server.errors import InvalidField, PreviousNotFound, RequestError, ResponseNotFound
from genai_server.openai_api.response_builder import ResponseBuilder
from genai_server.openai_api.response_items import given_items, referenced_ids
from genai_server.openai_api.responses import new_response, outer_error, to_chat
from genai_server.openai_api.schemas.base import ErrorResponse, JsonObject
from genai_server.openai_api.schemas.responses import (
    ENCRYPTED_REASONING,
    InputItemsParameters,
    InputTokens,
    ResponsesRequest,
    RetrieveParameters,
)
from genai_server.openai_api.translate import to_sampling

router = APIRouter(tags=["openai"], responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)})


@router.post("/v1/responses", responses=STREAMS)
@router.post("/responses", include_in_schema=False)
async def create_response(
    body: ResponsesRequest,
    services: TheServices,
    caller: TheCaller,
    owner: TheHolder,
) -> Response:
    """OpenAI's response, in one piece or as a stream of events."""
    running = await _start(body, services, caller, owner)
    if body.stream:
        return EventStream(running, running.events(), named=True, tell_error=running.fail)
    try:
        return JSONResponse(await running.whole(caller.receive))
    finally:
        running.close()


@router.post("/v1/responses/input_tokens", response_model=InputTokens)
@router.post("/responses/input_tokens", include_in_schema=False)
async def count_input_tokens(body: ResponsesRequest, services: TheServices, owner: TheHolder) -> InputTokens:
    """How many tokens the prompt of this response has; no engine is asked, and nothing is kept."""
    codec = (await find_served(services, body.model)).codec
    chat = to_chat(body, _conversation(body, services, owner))
    with _in_words_of_the_client():
        return InputTokens(input_tokens=len(await encode_chat(chat, codec)))


@router.get("/v1/responses/{response_id}")
@router.get("/responses/{response_id}", include_in_schema=False)
async def get_response(
    response_id: str, query: Annotated[RetrieveParameters, Query()], services: TheServices, owner: TheHolder
) -> dict[str, Any]:
    """A response as it is now."""
    return services.responses.get(response_id, owner).response


@router.delete("/v1/responses/{response_id}")
@router.delete("/responses/{response_id}", include_in_schema=False)
async def delete_response(response_id: str, services: TheServices, owner: TheHolder) -> dict[str, Any]:
    """Forget a response; those that went on from it have what they need of it."""
    services.responses.delete(response_id, owner)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel")
@router.post("/responses/{response_id}/cancel", include_in_schema=False)
async def cancel_response(response_id: str, services: TheServices, owner: TheHolder) -> dict[str, Any]:
    """End a response that is being made, and give what there is of it."""
    kept = services.responses.get(response_id, owner)
    kept.cancel()
    return kept.response


@router.get("/v1/responses/{response_id}/input_items")
@router.get("/responses/{response_id}/input_items", include_in_schema=False)
async def list_input_items(
    response_id: str, query: Annotated[InputItemsParameters, Query()], services: TheServices, owner: TheHolder
) -> dict[str, Any]:
    """The items that a response was made from, those of the turns before included, page by page."""
    items = services.responses.get(response_id, owner).items
    if query.order == "desc":
        items = items[::-1]
    if query.after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == query.after]
        if not places:
            raise InvalidField(f"after must be the id of an input item, given {query.after[:100]!r}", param="after")
        items = items[places[0] + 1 :]
    page = items[: query.limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return {"object": "list", "data": page, **ends, "has_more": len(items) > len(page)}


async def _start(body: ResponsesRequest, services: Services, caller: Caller, owner: str | None) -> RunningResponse:
    """Raises RequestError, which names the field that the client gave, and Unavailable."""
    store = services.responses
    if body.store and not store.is_on:
        raise InvalidField("store must not be true: this server keeps no responses", param="store")
    items = _conversation(body, services, owner)
    chat = to_chat(body, items)
    served = await caller.waits_for(services.models.serving(body.model, caller.deadline.seconds_left))
    _, model = served.router.pick(body.device)
    is_stored = store.is_on and body.store is not False
    begun = new_response(
        body,
        model=services.models.choose(body.model).id,
        sampling=to_sampling(body, model),
        created=int(time.time()),
        is_stored=is_stored,
    )
    with _in_words_of_the_client():
        choices = await start_chat(services, chat, caller, is_streamed=bool(body.stream))
    build = ResponseBuilder(begun, is_encrypted=ENCRYPTED_REASONING in (body.include or []))
    return RunningResponse(
        choices,
        build,
        items,
        store if is_stored else None,
        owner=owner,
        with_metrics=bool(body.include_metrics),
    )


@contextmanager
def _in_words_of_the_client() -> Iterator[None]:
    """Let errors name the fields of the body, not those of the chat that is made of it."""
    try:
        yield
    except RequestError as error:
        raise outer_error(error) from None


def _conversation(body: ResponsesRequest, services: Services, owner: str | None) -> list[JsonObject]:
    """The items of all turns. Raises InvalidField."""
    kept = services.responses.find_items(referenced_ids(body.input), owner)
    return [*_earlier(body, services, owner), *given_items(body.input, kept)]


def _earlier(body: ResponsesRequest, services: Services, owner: str | None) -> list[JsonObject]:
    """The items of the turns before. Raises PreviousNotFound, and InvalidField for a response that has not ended."""
    if body.previous_response_id is None:
        return []
    try:
        kept: KeptResponse = services.responses.get(body.previous_response_id, owner)
    except ResponseNotFound as error:
        raise PreviousNotFound(error.message, param="previous_response_id") from None
    response = kept.response
    if response["status"] == "in_progress":
        raise InvalidField(
            f"previous_response_id {body.previous_response_id!r} is still in progress", param="previous_response_id"
        )
    return [*kept.items, *response["output"]]
