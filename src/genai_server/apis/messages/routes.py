"""The endpoints /v1/messages and /v1/messages/count_tokens of Anthropic's API."""

import asyncio
from collections.abc import AsyncGenerator

from fastapi.responses import JSONResponse, Response

from genai_server.apis.messages.leniency import LEFT_OUT, convert
from genai_server.apis.messages.response import MessageBuilder
from genai_server.apis.messages.schemas import AnthropicErrorResponse, CountTokensRequest, MessagesRequest
from genai_server.apis.messages.tools import find_server_tools
from genai_server.apis.messages.translate import Translation
from genai_server.apis.shared.router import VersionedRouter
from genai_server.generation.answers import Generation
from genai_server.generation.dependencies import RequestContextDep, ServicesDep
from genai_server.generation.generate import generate
from genai_server.generation.prompts import encode_chat
from genai_server.generation.tool_loop import generate_with_tools
from genai_server.http.body_route import lenient_route
from genai_server.http.json_response import JsonObject
from genai_server.http.streams import STREAMS, EventStream
from genai_server.model_files.pooling_model import Task

router = VersionedRouter(lenient_route(LEFT_OUT, convert=convert, caps=True), "anthropic", error=AnthropicErrorResponse)


@router.post("/v1/messages", responses=STREAMS)
async def create_message(body: MessagesRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Create a message, as one object or as a stream of events."""
    served = await find_server_tools(body, services, context)
    translation = await asyncio.to_thread(Translation, body, served)
    body.messages.clear()  # the translation has them, and drops the data of their images
    translation.report(context.leniency)
    with context.leniency.with_names(translation.names):
        if translation.tools.tools:
            generation = await generate_with_tools(
                services, translation.chat, context, translation.tools, is_streamed=bool(body.stream)
            )
        else:
            generation = await generate(services, translation.chat, context, is_streamed=bool(body.stream))
    build = MessageBuilder(
        context.answer_id("msg_"),
        generation.model,
        body.max_tokens,
        shows_thinking=body.thinking is None or body.thinking.display != "omitted",
        served=translation.tools,
    )
    if body.stream:
        return EventStream(generation, _events(generation, build), named=True)
    (whole,) = await context.run_while_connected(generation.whole())
    (answer,) = generation.answers
    return JSONResponse(build.complete(whole, answer.ending, answer.usage))


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountTokensRequest, services: ServicesDep, context: RequestContextDep) -> dict[str, int]:
    """Count the tokens of a prompt. Needs no running engine."""
    codec = (await services.served(body.model, Task.GENERATE)).codec
    served = await find_server_tools(body, services, context)
    translation = await asyncio.to_thread(Translation, body, served)
    translation.report(context.leniency)
    with context.leniency.with_names(translation.names):
        prompt = await context.run_in_time(encode_chat(services, translation.chat, codec, context))
    return {"input_tokens": len(prompt.tokens)}


async def _events(generation: Generation, build: MessageBuilder) -> AsyncGenerator[JsonObject]:
    (answer,) = generation.answers
    yield build.first(answer.usage)
    async for piece in answer.pieces():
        for event in build.parts(piece.parts):
            yield event
    for event in build.last(answer.ending, answer.usage):
        yield event
