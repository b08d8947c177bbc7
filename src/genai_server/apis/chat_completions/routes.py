"""OpenAI's /v1/chat/completions."""

import time

from fastapi import APIRouter
from fastapi.responses import Response

from genai_server.apis.chat_completions.choices import OtherNames, choices_response
from genai_server.apis.chat_completions.response import ChatCompletionBuilder
from genai_server.apis.chat_completions.schemas import ChatCompletionRequest, leave_out_of_chat
from genai_server.apis.shared.base import ErrorResponse
from genai_server.apis.tokens.schemas import RenderedPrompt
from genai_server.generation.dependencies import TheRequestContext, TheServices
from genai_server.generation.generate import generate
from genai_server.generation.prompts import encode_chat
from genai_server.http.json_response import json_response
from genai_server.http.middleware.body import TheLeniency, lenient_route
from genai_server.http.sse import STREAMS
from genai_server.pooling_model import Task

router = APIRouter(
    route_class=lenient_route(leave_out_of_chat),
    tags=["openai"],
    responses={code: {"model": ErrorResponse} for code in (400, 404, 500, 503)},
)


@router.post("/v1/chat/completions", responses=STREAMS)
@router.post("/chat/completions", include_in_schema=False)
async def create_chat_completion(
    body: ChatCompletionRequest,
    services: TheServices,
    context: TheRequestContext,
) -> Response:
    """OpenAI's chat completion, complete or as a stream of chunks."""
    names = OtherNames(body.other_names)
    with context.leniency.in_words(names.name, names.error):
        generation = await generate(services, body, context, is_streamed=bool(body.stream))
    build = ChatCompletionBuilder(
        f"chatcmpl-{context.request_id.removeprefix('req-')}",
        generation.model,
        int(time.time()),
        fingerprint=generation.fingerprint,
        has_usage=body.has_last_usage or body.has_running_usage,
        has_logprobs=bool(body.logprobs),
        calls_functions=body.functions is not None,
    )
    return await choices_response(generation, build, body, context, is_long=bool(body.logprobs))


@router.post("/v1/chat/completions/render", response_model=RenderedPrompt)
@router.post("/chat/completions/render", include_in_schema=False)
async def render_chat_completion(body: ChatCompletionRequest, services: TheServices, leniency: TheLeniency) -> Response:
    """The tokens of a chat's prompt, for routers that index prefixes, as in vLLM. Needs no engine."""
    served = await services.served(body.model, Task.GENERATE)
    return json_response({"token_ids": await encode_chat(body, served.codec, leniency)})
