"""The request header with which a client lets the server run tools of the operator's tool servers in a chat completion.

OpenAI's API has no fields for this. Calls that the server has run and their results are in `genai_tool_runs`. Calls
that the client has to approve are in `tool_calls`, like calls of the client's own tools. To approve a call, the client
sends the conversation back without a result for it; to decline, with a result that says so.
"""

from typing import Annotated

from fastapi import Header

from genai_server.apis.chat_completions.schemas import ChatCompletionRequest
from genai_server.errors import InvalidField
from genai_server.generation.dependencies import RequestContext, Services
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

HEADER = "x-genai-run-tools"
# The type of a route's parameter.
RunTools = Annotated[
    str | None,
    Header(alias=HEADER, description="Names of tool servers, separated by commas, whose tools the server runs itself."),
]


async def find_run_tools(
    names: str | None, body: ChatCompletionRequest, services: Services, context: RequestContext
) -> tuple[ChatCompletionRequest, ServedTools]:
    """Add the tools of the servers named in the header to the body; returns the new body and the tools that the server
    runs.

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
