"""The endpoints below /v1/responses of OpenAI's API: create a response, read, cancel and delete stored responses, list
their input items, count the tokens of a prompt, and compact a conversation.

A response may be stored, may continue a stored response or conversation, and may be generated in the background.
"""

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
    """Let a model answer the input, and return the response as one object or, with `stream`, as a stream of events.
    With `background`, the response is generated in the background: it is returned at once with the status queued, and
    can be read again by its id.
    """
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
    """Answer a GET request at the path for creating responses with status 426 (Upgrade Required). This path accepts
    WebSockets, and each WebSocket handshake is first sent through the app as such a GET request; status 426 means that
    the app permits the connection (apis/responses/websocket.py).
    """
    return Response(status_code=426, headers={"upgrade": "websocket", "connection": "upgrade"})


@router.post("/v1/responses/input_tokens", response_model=InputTokens)
async def count_input_tokens(
    body: ResponsesRequest, services: ServicesDep, stored: StoreDep, context: RequestContextDep
) -> InputTokens:
    """Return the number of tokens of the prompt that a request to create a response would have. No answer is generated,
    and nothing is stored. It also works while no engine is running.
    """
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
    """Shorten a long conversation for further requests. The result has the user's messages of the conversation and an
    item with a summary of all of it, which the model writes. Send this output as the beginning of the next input.
    """
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
    """Return a stored or running response in its current state. With `stream`, the events of a background response that
    was created with a stream are sent again, from the beginning or after the event `starting_after`.
    """
    response = await stored.store.get(response_id, stored.owner)
    if query.stream:
        return _followed(response, query.starting_after)
    if query.starting_after is not None:
        raise InvalidField("starting_after", "is only allowed with stream: true")
    return await built_response(lambda: response.response, is_long=True)


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, stored: StoreDep) -> dict[str, Any]:
    """Delete a response, and confirm the deletion. A background response that is still running is cancelled. Responses
    that continued the deleted one keep the items that they need.
    """
    await stored.store.delete(response_id, stored.owner)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(response_id: str, stored: StoreDep) -> Response:
    """Cancel a response that is still running. Returns the response with the status cancelled and the answer so far. A
    response that has already been cancelled is returned unchanged; one that has ended otherwise is refused.
    """
    response = await stored.store.cancel(response_id, stored.owner)
    return await built_response(lambda: response.response, is_long=True)


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    response_id: str, query: Annotated[InputItemsParameters, Query()], stored: StoreDep
) -> Response:
    """Return one page of the input items of a response, including the items of the earlier turns that it continues. By
    default these are the 20 newest items, the newest one first. `limit`, `order` and `after` select another page.
    """
    page = await stored.store.page("response", response_id, stored.owner, query)
    return await page_response(page, shown=listed)


def _followed(response: KeptResponse, after: int | None = None) -> EventStream:
    """Return an HTTP response that streams the events of `response`, a stored or running response: all of them or, if
    `after` is not None, those after the event with the sequence number `after`. The response does not end when the
    client closes the stream.

    Raises InvalidField if the events were not kept, because the response was not created with `background` and
    `stream`.
    """
    events = response.follow(after)
    return EventStream(Following(response), events, named=True, make_error=lambda error: stream_error(error, 0))


async def _start(
    body: ResponsesRequest, services: Services, context: RequestContext, stored: CallerStore
) -> RunningResponse:
    """Check a request to create a response, and start to generate the answer. Returns when an engine has accepted the
    request; the caller must read, run or close the running response.

    Raises RequestError if the request is wrong, with a message that names fields as the client wrote them, and
    Unavailable if it cannot be accepted now.
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
    """Start to generate the answer to a conversation, with fewer items if the prompt is too long. `start` makes a
    prompt of the items given to it and starts the generation. Returns the items that are in the prompt, and the running
    generation.

    If `is_shortened`, the oldest of `items` are dropped until the prompt is short enough. Raises PromptTooLong if
    `is_shortened` is false or no more items can be dropped, and all other errors of `start`.
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
    """Return the name of the request's field that refers to the earlier turns of the conversation: `conversation` if it
    is given, otherwise `previous_response_id`. Error messages use it.
    """
    is_conversation = isinstance(body, ResponsesRequest) and body.conversation is not None
    return "conversation" if is_conversation else "previous_response_id"


async def _items(
    body: ResponsesRequest | CompactRequest, stored: CallerStore
) -> tuple[list[JsonObject], list[JsonObject]]:
    """Return two lists of items in the form that responses contain: those of all earlier turns that the request
    continues, and those of the request's own field `input`.

    Raises InvalidField (including PreviousNotFound), ConversationNotFound and StoreUnavailable.
    """
    body_input: str | list[InputItem] = [] if body.input is None else body.input
    return await _earlier(body, stored), await stored.to_response_items(body_input, "input")


async def _earlier(body: ResponsesRequest | CompactRequest, stored: CallerStore) -> list[JsonObject]:
    """Return the items of all earlier turns: of the stored conversation or of the previous response that the request
    names. The list is empty if the request names none.

    Raises PreviousNotFound, ConversationNotFound, StoreUnavailable, and InvalidField if the previous response is still
    running or there are too many items to be continued.
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
