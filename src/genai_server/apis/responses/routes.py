"""The endpoint /v1/responses of OpenAI's API, with stored, continued and background responses."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import Response

from genai_server.apis.responses.item_schemas import InputItem
from genai_server.apis.responses.items import listed, new_id
from genai_server.apis.responses.leniency import LEFT_OUT, convert
from genai_server.apis.responses.response import ResponseBuilder, stream_error
from genai_server.apis.responses.running_response import Following, RunningResponse
from genai_server.apis.responses.schemas import (
    ENCRYPTED_REASONING,
    CompactRequest,
    InputItemsParameters,
    InputTokens,
    ResponsesRequest,
    RetrieveParameters,
)
from genai_server.apis.responses.served_tools import find_mcp_tools, with_calls
from genai_server.apis.responses.store import RUNNING, CallerStore, KeptResponse, StoreDep, not_stored, page_response
from genai_server.apis.responses.translate import (
    compacted,
    compacting,
    field_names,
    name_conversions,
    new_response,
    shortened,
    to_chat,
    tools_by_name,
)
from genai_server.apis.shared.router import VersionedRouter
from genai_server.errors import (
    ConversationNotFound,
    InvalidField,
    PreviousNotFound,
    PromptTooLong,
    ResponseNotFound,
    quoted,
)
from genai_server.generation.answers import Generation
from genai_server.generation.dependencies import RequestContext, RequestContextDep, Services, ServicesDep
from genai_server.generation.generate import generate
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.generation.prompts import encode_chat
from genai_server.generation.tool_loop import generate_with_tools
from genai_server.http.body_route import lenient_route
from genai_server.http.json_response import JsonObject, built_response, json_response
from genai_server.http.streams import STREAMS, EventStream
from genai_server.model_files.pooling_model import Task

# Safety margin when shortening a prompt that is too long: the number of tokens per character varies.
_MARGIN = 0.95

router = VersionedRouter(lenient_route(LEFT_OUT, convert=convert), "openai")


@router.post("/v1/responses", responses=STREAMS)
async def create_response(
    body: ResponsesRequest, services: ServicesDep, context: RequestContextDep, stored: StoreDep
) -> Response:
    """Create a response, as one object or as a stream of events. With `background`, the request returns at once."""
    running = await _start(body, services, context, stored)
    if body.background:
        await running.start_in_background(context.detach(), services.drain.counting)
        if body.stream:
            return _followed(running)
        return json_response(running.response)
    running.begin()
    if body.stream:
        return EventStream(running, running.events(), named=True, make_error=running.fail)
    try:
        final = await running.whole(context)
        response = await built_response(lambda: final, is_long=True)
    finally:
        running.close()
    response.headers.update(not_stored(running.not_stored))
    return response


@router.get("/v1/responses", include_in_schema=False)
async def upgrade_required() -> Response:
    """Answer a GET with 426. WebSocket handshakes are checked by such a request (apis/responses/websocket.py)."""
    return Response(status_code=426, headers={"upgrade": "websocket", "connection": "upgrade"})


@router.post("/v1/responses/input_tokens", response_model=InputTokens)
async def count_input_tokens(
    body: ResponsesRequest, services: ServicesDep, stored: StoreDep, context: RequestContextDep
) -> InputTokens:
    """Count the tokens of the prompt for a response. Needs no running engine and stores nothing."""
    codec = (await services.served(body.model, Task.GENERATE)).codec
    earlier, new_items = await _items(body, stored)
    mcp = await find_mcp_tools(body, services, context)
    conversation = with_calls([*earlier, *new_items], mcp.labels).items
    chat = await asyncio.to_thread(to_chat, mcp.instead(body), conversation)
    name_conversions(context.leniency, conversation, new_items, _field_of_earlier(body))
    with context.leniency.with_names(field_names(chat, conversation, new_items, _field_of_earlier(body))):
        prompt = await context.run_in_time(encode_chat(services, chat, codec, context))
    return InputTokens(input_tokens=len(prompt.tokens))


@router.post("/v1/responses/compact")
async def compact_response(
    body: CompactRequest, services: ServicesDep, context: RequestContextDep, stored: StoreDep
) -> dict[str, Any]:
    """Compact a long conversation to its user messages and a summary that the model writes."""
    earlier, new_items = await _items(body, stored)
    conversation = [*earlier, *new_items]

    async def begin(items: Sequence[JsonObject]) -> Generation:
        chat = await asyncio.to_thread(compacting, body, items)
        name_conversions(context.leniency, items, new_items, _field_of_earlier(body))
        with context.leniency.with_names(field_names(chat, items, new_items, _field_of_earlier(body))):
            return await generate(services, chat, context, keeps_media=True)

    _, generation = await _begun(begin, conversation, is_shortened=True)
    try:
        (summary,) = await context.run_while_connected(generation.whole())
    finally:
        generation.close()
    return {
        "id": new_id("resp"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": compacted(conversation, summary.content),
        "usage": generation.usage().to_response_json(),
    }


@router.get("/v1/responses/{response_id}", responses=STREAMS)
async def get_response(response_id: str, query: Annotated[RetrieveParameters, Query()], stored: StoreDep) -> Response:
    """Get a response in its current state, or the events of a background response that was created with a stream."""
    response = await stored.store.get(response_id, stored.owner)
    if query.stream:
        return _followed(response, query.starting_after)
    if query.starting_after is not None:
        raise InvalidField("starting_after", "is only allowed with stream: true")
    return await built_response(lambda: response.response, is_long=True)


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, stored: StoreDep) -> dict[str, Any]:
    """Delete a response. Responses that continued it keep the items that they need."""
    await stored.store.delete(response_id, stored.owner)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(response_id: str, stored: StoreDep) -> Response:
    """Cancel a running response; returns the response with its partial answer."""
    response = await stored.store.cancel(response_id, stored.owner)
    return await built_response(lambda: response.response, is_long=True)


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    response_id: str, query: Annotated[InputItemsParameters, Query()], stored: StoreDep
) -> Response:
    """List the input items of a response page by page, including those of earlier turns."""
    page = await stored.store.page("response", response_id, stored.owner, query)
    return await page_response(page, shown=listed)


def _followed(response: KeptResponse, after: int | None = None) -> EventStream:
    """A stream with the events of a response that follow the event with the sequence number `after`, or all of them.
    Closing the stream does not end the response.

    Raises InvalidField if the response has no events, because it was not created as a background response with a
    stream.
    """
    events = response.follow(after)
    return EventStream(Following(response), events, named=True, make_error=lambda error: stream_error(error, 0))


async def _start(
    body: ResponsesRequest, services: Services, context: RequestContext, stored: CallerStore
) -> RunningResponse:
    """Check a request and start to generate the response. Returns when an engine has accepted the request.

    Raises RequestError, whose message names fields as the client wrote them, and Unavailable.
    """
    store = stored.store
    if not store.is_on:
        for field in ("store", "background", "conversation"):
            if getattr(body, field):
                raise InvalidField(
                    field,
                    f"must not be {'given' if field == 'conversation' else 'true'}: this server does not store "
                    "responses (GENAI_RESPONSE_STORE_SIZE)",
                )
    if body.store or body.conversation is not None:
        await store.check(stored.owner)
    earlier, new_items = await _items(body, stored)
    mcp = await find_mcp_tools(body, services, context)
    expanded = mcp.instead(body)

    async def begin(items: Sequence[JsonObject]) -> Generation:
        history = with_calls(items, mcp.labels)
        chat: ChatParameters = await asyncio.to_thread(to_chat, expanded, history.items)
        name_conversions(context.leniency, history.items, new_items, _field_of_earlier(body))
        with context.leniency.with_names(field_names(chat, history.items, new_items, _field_of_earlier(body))):
            return await generate_with_tools(
                services,
                chat,
                context,
                mcp.served(history.approved),
                is_streamed=bool(body.stream),
                max_calls=body.max_tool_calls,
            )

    items, generation = await _begun(begin, [*earlier, *new_items], is_shortened=body.truncation == "auto")
    response = new_response(
        body,
        model=generation.model,
        sampling=generation.sampling,
        created=int(time.time()),
        # The answers of a batch are in its files, and would take the place of other responses.
        is_stored=store.is_on and body.store is not False and (bool(body.store) or not context.low_priority),
    )
    build = ResponseBuilder(
        response,
        is_encrypted=ENCRYPTED_REASONING in (body.include or []),
        tools=tools_by_name(expanded, items),
        listed=mcp.lists(items),
        approved=with_calls(items, mcp.labels).approved,
    )
    return RunningResponse(
        generation,
        build,
        items,
        stored,
        given=new_items,
        with_metrics=bool(body.include_metrics),
        keeps_events=bool(body.background and body.stream),
    )


async def _begun(
    start: Callable[[Sequence[JsonObject]], Awaitable[Generation]], items: list[JsonObject], *, is_shortened: bool
) -> tuple[list[JsonObject], Generation]:
    """Call `start` with the items of a conversation, which starts to generate the answer. Returns the items that the
    prompt contains, and the running generation.

    If `is_shortened`, the oldest items are dropped as long as the prompt is too long. Raises PromptTooLong if no more
    items can be dropped, and the errors of `start`.
    """
    while True:
        try:
            return items, await start(items)
        except PromptTooLong as error:
            if not is_shortened or not error.tokens:
                raise
            assert isinstance(error.limit, int)
            fewer = await asyncio.to_thread(shortened, items, _MARGIN * error.limit / error.tokens)
            if fewer is None:
                raise
            items = fewer


def _field_of_earlier(body: ResponsesRequest | CompactRequest) -> str:
    """The name of the request's field that refers to the items of earlier turns."""
    is_conversation = isinstance(body, ResponsesRequest) and body.conversation is not None
    return "conversation" if is_conversation else "previous_response_id"


async def _items(
    body: ResponsesRequest | CompactRequest, stored: CallerStore
) -> tuple[list[JsonObject], list[JsonObject]]:
    """The items of all earlier turns, and the items of this request. Raises InvalidField and StoreUnavailable."""
    body_input: str | list[InputItem] = [] if body.input is None else body.input
    return await _earlier(body, stored), await stored.to_response_items(body_input, "input")


async def _earlier(body: ResponsesRequest | CompactRequest, stored: CallerStore) -> list[JsonObject]:
    """The items of all earlier turns.

    Raises PreviousNotFound, StoreUnavailable, and InvalidField if the previous response is still running or there are
    too many items.
    """
    store, owner = stored.store, stored.owner
    latest = None if stored.latest is None else stored.latest.record
    is_shortened = isinstance(body, CompactRequest) or body.truncation == "auto"
    conversation = body.conversation_id if isinstance(body, ResponsesRequest) else None
    previous, field = body.previous_response_id, _field_of_earlier(body)
    try:
        if conversation is not None:
            return await store.history("conversation", conversation, owner, is_shortened=is_shortened)
        if previous is None:
            return []
        if latest is not None and latest.id == previous:
            return [*latest.items, *latest.value["output"]]
        if (await store.get(previous, stored.owner)).response["status"] in RUNNING:
            raise InvalidField(field, f"{quoted(previous)} is still in progress")
        return await store.history("response", previous, owner, is_shortened=is_shortened)
    except ResponseNotFound as error:
        raise PreviousNotFound(field, f"cannot be continued: {error.message}") from None
    except (ConversationNotFound, InvalidField) as error:
        raise error.at(field) from None
