"""OpenAI's /v1/responses: responses that are kept, that later requests continue, and that run in the background."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from genai_server.api.generation.answers import Generation
from genai_server.api.generation.generate import generate
from genai_server.api.generation.json_response import built_response, json_response
from genai_server.api.generation.kept_response import KeptResponse
from genai_server.api.generation.prompts import encode_chat
from genai_server.api.generation.records import RUNNING, Record
from genai_server.api.generation.request_context import RequestContext, TheRequestContext
from genai_server.api.generation.response_store import ResponseStore
from genai_server.api.generation.running_response import Following, Keeping, RunningResponse
from genai_server.api.generation.sse import STREAMS, EventStream
from genai_server.api.leniency import TheLeniency
from genai_server.api.middleware.auth import TheHolder
from genai_server.api.middleware.body import lenient_route
from genai_server.api.routes.item_pages import page_response
from genai_server.api.services import Services, TheServices
from genai_server.errors import ConversationNotFound, InvalidField, PreviousNotFound, PromptTooLong, ResponseNotFound
from genai_server.openai_api.lenient import leave_out
from genai_server.openai_api.response_builder import ResponseBuilder
from genai_server.openai_api.response_items import given_items, listed, new_id, referenced_ids
from genai_server.openai_api.responses import (
    compacted,
    compacting,
    new_response,
    outer_error,
    outer_name,
    shortened,
    to_chat,
    tools_by_name,
)
from genai_server.openai_api.schemas.base import ErrorResponse, JsonObject
from genai_server.openai_api.schemas.chat import ChatParameters
from genai_server.openai_api.schemas.response_items import InputItem
from genai_server.openai_api.schemas.responses import (
    ENCRYPTED_REASONING,
    CompactRequest,
    InputItemsParameters,
    InputTokens,
    ResponsesRequest,
    RetrieveParameters,
)
from genai_server.pooling_model import Task
from genai_server.quoted_values import quoted

# Names why the file of the store does not have what it was to have.
NOT_STORED = "x-genai-not-stored"
# Of what a prompt may have, where it was too long: texts differ in their tokens.
_CAUTION = 0.95

router = APIRouter(
    route_class=lenient_route(leave_out),
    tags=["openai"],
    responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)},
)


@router.post("/v1/responses", responses=STREAMS)
@router.post("/responses", include_in_schema=False)
async def create_response(
    body: ResponsesRequest,
    services: TheServices,
    context: TheRequestContext,
    owner: TheHolder,
) -> Response:
    """OpenAI's response, in one piece or as a stream of events; with `background` at once, and it goes on."""
    running = await _start(body, services, context, owner)
    if body.background:
        await running.begin_in_background(context.detach(), services.drain.counting)
        if body.stream:
            return _followed(running)
        return json_response(running.response)
    running.begin()
    if body.stream:
        return EventStream(running, running.events(), named=True, tell_error=running.fail)
    try:
        whole = await running.whole(context)
        response = await built_response(lambda: whole, is_long=True)
    finally:
        running.close()
    response.headers.update(not_stored(running.not_stored))
    return response


@router.get("/v1/responses", include_in_schema=False)
@router.get("/responses", include_in_schema=False)
async def upgrade_required() -> Response:
    """What a WebSocket's handshake becomes (api/middleware/socket.py), or a request that forgot to be one."""
    return Response(status_code=426, headers={"upgrade": "websocket", "connection": "upgrade"})


@router.post("/v1/responses/input_tokens", response_model=InputTokens)
@router.post("/responses/input_tokens", include_in_schema=False)
async def count_input_tokens(
    body: ResponsesRequest, services: TheServices, owner: TheHolder, leniency: TheLeniency
) -> InputTokens:
    """The number of tokens of this response's prompt; needs no engine, and keeps nothing."""
    codec = (await services.served(body.model, Task.GENERATE)).codec
    earlier, given = await _items(body, services, owner)
    chat = await asyncio.to_thread(to_chat, body, [*earlier, *given])
    with leniency.in_words(outer_name, outer_error):
        return InputTokens(input_tokens=len(await encode_chat(chat, codec, leniency)))


@router.post("/v1/responses/compact")
@router.post("/responses/compact", include_in_schema=False)
async def compact_response(
    body: CompactRequest, services: TheServices, context: TheRequestContext, owner: TheHolder
) -> dict[str, Any]:
    """What its users have said and a summary by the model, for later requests in place of a long conversation."""
    earlier, given = await _items(body, services, owner)
    conversation = [*earlier, *given]

    async def begin(items: Sequence[JsonObject]) -> Generation:
        chat = await asyncio.to_thread(compacting, body, items)
        return await generate(services, chat, context)

    with context.leniency.in_words(outer_name, outer_error):
        _, generation = await _begun(begin, conversation, is_shortened=True)
    try:
        (whole,) = await context.waits_for(generation.whole())
    finally:
        generation.close()
    return {
        "id": new_id("resp"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": compacted(conversation, whole.content),
        "usage": generation.usage().to_response_json(),
    }


@router.get("/v1/responses/{response_id}", responses=STREAMS)
@router.get("/responses/{response_id}", include_in_schema=False)
async def get_response(
    response_id: str, query: Annotated[RetrieveParameters, Query()], services: TheServices, owner: TheHolder
) -> Response:
    """A response as it is now, or the events of one that is streamed in the background."""
    kept = await services.responses.get(response_id, owner)
    if query.stream:
        return _followed(kept, query.starting_after)
    if query.starting_after is not None:
        raise InvalidField("starting_after is only allowed with stream: true", param="starting_after")
    return await built_response(lambda: kept.response, is_long=True)


@router.delete("/v1/responses/{response_id}")
@router.delete("/responses/{response_id}", include_in_schema=False)
async def delete_response(response_id: str, services: TheServices, owner: TheHolder) -> dict[str, Any]:
    """Remove a response; responses that continued it keep the items that they need."""
    await services.responses.delete(response_id, owner)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel")
@router.post("/responses/{response_id}/cancel", include_in_schema=False)
async def cancel_response(response_id: str, services: TheServices, owner: TheHolder) -> Response:
    """End a running response; returns it with its partial answer."""
    kept = await services.responses.cancel(response_id, owner)
    return await built_response(lambda: kept.response, is_long=True)


@router.get("/v1/responses/{response_id}/input_items")
@router.get("/responses/{response_id}/input_items", include_in_schema=False)
async def list_input_items(
    response_id: str, query: Annotated[InputItemsParameters, Query()], services: TheServices, owner: TheHolder
) -> Response:
    """The items that a response was made from, those of earlier turns included, page by page."""
    page = await services.responses.input_items(response_id, owner, query)
    return await page_response(page, shown=listed)


def not_stored(reason: str | None) -> dict[str, str]:
    """The header with the reason, if there is one."""
    return {} if reason is None else {NOT_STORED: reason.encode("ascii", "backslashreplace").decode()}


def _followed(kept: KeptResponse, after: int | None = None) -> EventStream:
    """A stream of a response that goes on without it. Raises InvalidField."""
    source = Following(kept)
    return EventStream(source, kept.follow(after), named=True, tell_error=source.tell_error)


async def _start(
    body: ResponsesRequest, services: Services, context: RequestContext, owner: str | None
) -> RunningResponse:
    """Raises RequestError, which names the field that the client gave, and Unavailable."""
    store = services.responses
    if not store.is_on:
        for field in ("store", "background", "conversation"):
            if getattr(body, field):
                raise InvalidField(
                    f"{field} must not be {'given' if field == 'conversation' else 'true'}: this server keeps no "
                    "responses (GENAI_RESPONSE_STORE_SIZE)",
                    param=field,
                )
    earlier, given = await _items(body, services, owner, context)

    async def begin(items: Sequence[JsonObject]) -> Generation:
        chat: ChatParameters = await asyncio.to_thread(to_chat, body, items)
        return await generate(services, chat, context, is_streamed=bool(body.stream))

    with context.leniency.in_words(outer_name, outer_error):
        items, generation = await _begun(begin, [*earlier, *given], is_shortened=body.truncation == "auto")
    begun = new_response(
        body,
        model=generation.model,
        sampling=generation.sampling,
        created=int(time.time()),
        is_stored=store.is_on and body.store is not False,
    )
    build = ResponseBuilder(
        begun,
        is_encrypted=ENCRYPTED_REASONING in (body.include or []),
        tools=tools_by_name(body),
    )
    return RunningResponse(
        generation,
        build,
        items,
        Keeping(store, begun["store"], context.unique_id, owner, body.conversation_id, context.latest),
        given=given,
        with_metrics=bool(body.include_metrics),
        keeps_events=bool(body.background and body.stream),
    )


async def _begun(
    begin: Callable[[Sequence[JsonObject]], Awaitable[Generation]], items: list[JsonObject], *, is_shortened: bool
) -> tuple[list[JsonObject], Generation]:
    """The answer to a conversation, and the items of it that fit, with `is_shortened`, without the oldest.

    Raises PromptTooLong where nothing can be left out any more, and all that `begin` raises.
    """
    while True:
        try:
            return items, await begin(items)
        except PromptTooLong as error:
            if not is_shortened or not error.tokens:
                raise
            fewer = await asyncio.to_thread(shortened, items, _CAUTION * error.limit / error.tokens)
            if fewer is None:
                raise
            items = fewer


async def found_items(
    given: str | Sequence[InputItem], services: Services, owner: str | None, field: str
) -> dict[str, JsonObject]:
    """The stored items that a request's field refers to, by their ids. Raises InvalidField and StoreUnavailable."""
    try:
        return await services.responses.find_items(referenced_ids(given), owner)
    except InvalidField as error:
        raise error.reworded(error.message, param=field) from None


async def _items(
    body: ResponsesRequest | CompactRequest,
    services: Services,
    owner: str | None,
    context: RequestContext | None = None,
) -> tuple[list[JsonObject], list[JsonObject]]:
    """The items of all earlier turns, and those of this request. Raises InvalidField and StoreUnavailable."""
    given: str | list[InputItem] = [] if body.input is None else body.input
    kept = await found_items(given, services, owner, "input")
    latest = None if context is None or context.latest is None else context.latest.record
    earlier = await _earlier(body, services.responses, owner, latest)
    return earlier, await asyncio.to_thread(given_items, given, kept)


async def _earlier(
    body: ResponsesRequest | CompactRequest, store: ResponseStore, owner: str | None, latest: Record | None
) -> list[JsonObject]:
    """The items of earlier turns. Raises PreviousNotFound, StoreUnavailable, and InvalidField for a response that still
    runs, and for more than a request may continue.
    """
    is_shortened = isinstance(body, CompactRequest) or body.truncation == "auto"
    conversation = body.conversation_id if isinstance(body, ResponsesRequest) else None
    previous, field = body.previous_response_id, "previous_response_id"
    try:
        if conversation is not None:
            field = "conversation"
            return await store.history("conversation", conversation, owner, is_shortened=is_shortened)
        if previous is None:
            return []
        if latest is not None and latest.id == previous:
            return latest.all_items
        if (await store.get(previous, owner)).response["status"] in RUNNING:
            raise InvalidField(f"{field} {quoted(previous)} is still in progress", param=field)
        return await store.history("response", previous, owner, is_shortened=is_shortened)
    except ResponseNotFound as error:
        raise PreviousNotFound(error.message, param=field) from None
    except (ConversationNotFound, InvalidField) as error:
        raise error.reworded(error.message, param=field) from None
