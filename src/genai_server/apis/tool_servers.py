"""The endpoint /v1/tool_servers, which lists the configured tool servers that a client may use. A tool server is a
program of the operator that offers tools; this server can call them for the model during a request.
"""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from genai_server.apis.shared.router import error_responses
from genai_server.generation.dependencies import RequestContextDep, ServicesDep
from genai_server.generation.tool_loop import usable_servers

router = APIRouter(tags=["tools"], responses=error_responses(401, 429))


class ListedToolServer(BaseModel):
    """A configured tool server: its name (`id`), and the operator's description. Requests refer to it by the name, in
    the header `x-genai-run-tools` or in the fields `server_label` or `mcp_servers`.
    """

    id: str
    object: Literal["tool_server"] = "tool_server"
    description: str


class ToolServerList(BaseModel):
    """Response of /v1/tool_servers: the tool servers, programs of the operator that offer tools,
    that the client may use.
    """

    object: Literal["list"] = "list"
    data: list[ListedToolServer]


@router.get("/v1/tool_servers", response_model=ToolServerList)
async def list_tool_servers(services: ServicesDep, context: RequestContextDep) -> ToolServerList:
    """List the tool servers, programs of the operator that offer tools, whose tools this server runs for requests with
    the client's API key.
    """
    servers = services.tools.servers
    return ToolServerList(
        data=[
            ListedToolServer(id=name, description=servers[name].description)
            for name in usable_servers(services, context)
        ]
    )
