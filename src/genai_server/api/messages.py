"""Anthropic's /v1/messages and /v1/messages/count_tokens."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from genai_server.anthropic_api.message import MessageBuilder
from genai_server.anthropic_api.schemas import CountTokensRequest, ErrorResponse, MessagesRequest
from genai_server.anthropic_api.translate import Translation
from genai_server.api.caller import TheCaller
from genai_server.api.choices import Choices
from genai_server.api.errors import anthropic_body
from genai_server.api.services import TheServices
from genai_server.api.sse import STREAMS, EventStream
from genai_server.api.start import encode_chat, find_served, start_chat
from genai_server.errors import RequestError
from genai_server.openai_api.schemas.base import JsonObject

router = APIRouter(tags=["anthropic"], responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)})


@router.post("/v1/messages", responses=STREAMS)
@router.post("/messages", include_in_schema=False)
async def create_message(
    body: MessagesRequest,
    services: TheServices,
    caller: TheCaller,
) -> Response:
    """Anthropic's message, in one piece or as a stream of events."""
    translation = Translation(body)
    with _in_words_of(translation):
        choices = await start_chat(services, translation.chat, caller, is_streamed=bool(body.stream))
    build = MessageBuilder(
        f"msg_{caller.request_id.removeprefix('req-')}",
        choices.model,
        body.max_tokens,
        shows_thinking=body.thinking is None or body.thinking.display != "omitted",
    )
    if body.stream:
        return EventStream(
            choices,
            _events(choices, build),
            named=True,
            tell_error=lambda error: anthropic_body(error, caller.request_id),
        )
    (whole,) = await choices.whole(caller.receive)
    (answer,) = choices.answers
    return JSONResponse(build.complete(whole, answer.reason, answer.usage, stop_string=answer.stop_string))


@router.post("/v1/messages/count_tokens")
@router.post("/messages/count_tokens", include_in_schema=False)
async def count_tokens(body: CountTokensRequest, services: TheServices) -> dict[str, int]:
    """How many tokens the prompt of a message has; no engine is asked."""
    codec = (await find_served(services, body.model)).codec
    translation = Translation(body)
    with _in_words_of(translation):
        return {"input_tokens": len(await encode_chat(translation.chat, codec))}


async def _events(choices: Choices, build: MessageBuilder) -> AsyncIterator[JsonObject]:
    (answer,) = choices.answers
    yield build.first(answer.usage)
    async for piece in answer.pieces():
        for event in build.parts(piece.parts):
            yield event
    for event in build.last(answer.reason, answer.usage, stop_string=answer.stop_string):
        yield event


@contextmanager
def _in_words_of(translation: Translation) -> Iterator[None]:
    """Let errors name the fields of the body that was translated."""
    try:
        yield
    except RequestError as error:
        raise translation.outer(error) from None
