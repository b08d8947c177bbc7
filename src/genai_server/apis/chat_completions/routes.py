"""The endpoint /v1/chat/completions of OpenAI's API.

With the header `x-genai-run-tools`, a client lets the server run tools of the operator's tool servers. OpenAI's API has
no fields for this. Calls that the server has run and their results are in `genai_tool_runs`. Calls that the client has
to approve are in `tool_calls`, like calls of the client's own tools. To approve a call, the client sends the
conversation back without a result for it; to decline, with a result that says so.
"""

from functools import partial
from typing import Annotated

from fastapi import Header
from fastapi.responses import Response

from genai_server.apis.chat_completions.response import ChatCompletionBuilder, FunctionCallBuilder, choices_response
from genai_server.apis.chat_completions.schemas import CHATS, ChatCompletionRequest
from genai_server.apis.shared.chat_history import convert_messages
from genai_server.apis.shared.router import VersionedRouter
from genai_server.apis.tokens import RenderedPrompt
from genai_server.errors import InvalidField
from genai_server.generation.dependencies import RequestContext, RequestContextDep, Services, ServicesDep
from genai_server.generation.prompts import encode_chat
from genai_server.generation.tool_loop import (
    Selection,
    ServedTool,
    ServedTools,
    find_tools,
    served_tools,
    unanswered,
    usable_servers,
    with_tools,
)
from genai_server.http.body_route import lenient_route
from genai_server.http.json_response import json_response
from genai_server.http.streams import STREAMS
from genai_server.model_files.pooling_model import Task

router = VersionedRouter(lenient_route(CHATS, convert=convert_messages), "openai")
# The header with which a client lets the server run tools.
HEADER = "x-genai-run-tools"
# The type of a route's parameter.
RunTools = Annotated[
    str | None,
    Header(alias=HEADER, description="Names of tool servers, separated by commas, whose tools the server runs itself."),
]


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


async def find_run_tools(
    names: str | None, body: ChatCompletionRequest, services: Services, context: RequestContext
) -> tuple[ChatCompletionRequest, ServedTools]:
    """Add the tools of tool servers to the body. `names` is the value of the header x-genai-run-tools, the servers'
    names separated by commas; None without the header. Returns the new body and the tools that the server runs.

    Raises InvalidField, ToolServerUnavailable, ClientLeft and DeadlinePassed.
    """
    chosen = list(dict.fromkeys(filter(None, (name.strip() for name in (names or "").split(",")))))
    if not chosen:
        return body, ServedTools()
    usable = usable_servers(services, context)
    for name in chosen:
        if name not in usable:
            known = ", ".join(usable) or "none"
            raise InvalidField(HEADER, f"must name tool servers that this request may use ({known})", given=name)
    if (body.n or 1) > 1:
        raise InvalidField("n", f"must be 1 with the header {HEADER}", given=body.n)
    if body.functions is not None:
        raise InvalidField("functions", f"cannot be combined with the header {HEADER}; use tools")
    tools: list[ServedTool] = await find_tools(services, context, body.model, [Selection(name) for name in chosen])
    served = served_tools(tools, body, unanswered(body.messages))
    return with_tools(body, tools), served
