"""The endpoint /v1/chat/completions of OpenAI's API."""

from functools import partial

from fastapi.responses import Response

from genai_server.apis.chat_completions.response import ChatCompletionBuilder, FunctionCallBuilder, choices_response
from genai_server.apis.chat_completions.run_tools import RunTools, find_run_tools
from genai_server.apis.chat_completions.schemas import CHATS, ChatCompletionRequest
from genai_server.apis.shared.chat_history import convert_messages
from genai_server.apis.shared.router import VersionedRouter
from genai_server.apis.tokens.schemas import RenderedPrompt
from genai_server.generation.dependencies import RequestContextDep, ServicesDep
from genai_server.generation.prompts import encode_chat
from genai_server.http.body_route import lenient_route
from genai_server.http.json_response import json_response
from genai_server.http.sse import STREAMS
from genai_server.model_files.pooling_model import Task

router = VersionedRouter(lenient_route(CHATS, convert=convert_messages), "openai")


@router.post("/v1/chat/completions", responses=STREAMS)
@router.post("/api/v0/chat/completions", include_in_schema=False)  # LM Studio's name
async def create_chat_completion(
    body: ChatCompletionRequest, services: ServicesDep, context: RequestContextDep, run_tools: RunTools = None
) -> Response:
    """Create a chat completion, as one object or as a stream of chunks."""
    body, tools = await find_run_tools(run_tools, body, services, context)
    kind = ChatCompletionBuilder if body.functions is None else FunctionCallBuilder
    builder = partial(kind, custom_tools=body.custom_names, served=tools)
    is_long = bool(body.logprobs) or bool(tools.tools)
    return await choices_response(services, body, context, builder, id_prefix="chatcmpl-", is_long=is_long, tools=tools)


@router.post("/v1/chat/completions/render", response_model=RenderedPrompt)
async def render_chat_completion(
    body: ChatCompletionRequest, services: ServicesDep, context: RequestContextDep
) -> Response:
    """Get the tokens of a chat's prompt, as in vLLM, for routers that index prefixes. Needs no running engine."""
    served = await services.served(body.model, Task.GENERATE)
    prompt = await context.run_in_time(encode_chat(services, body, served.codec, context))
    return json_response({"token_ids": prompt.tokens})
