"""Anthropic's field `mcp_servers`: tool servers that the operator has configured, or that the request names by URL."""

from collections.abc import Mapping, Sequence

from genai_server.apis.messages.schemas import CountTokensRequest, McpServer, McpToolset
from genai_server.config.tool_servers import NAME_RULE, is_name
from genai_server.errors import InvalidField
from genai_server.generation.dependencies import RequestContext, Services
from genai_server.generation.tool_loop import Selection, ServedTool, address_of, find_tools, usable_servers
from genai_server.messages.tool_servers import ServerAddress, ToolInfo


async def find_server_tools(
    body: CountTokensRequest, services: Services, context: RequestContext
) -> Mapping[str, Sequence[ServedTool]]:
    """The tools of the tool servers that a request names, by the name of the server.

    Servers that the request may not use are left out and reported. So are tools whose calls a client has to approve,
    because Anthropic's API has no form for approvals. Raises InvalidField, ToolServerUnavailable, ClientLeft and
    DeadlinePassed.
    """
    usable = usable_servers(services, context)
    toolsets = {each.mcp_server_name: each for each in body.mcp_toolsets or ()}
    names = [each.name for each in body.mcp_servers or ()]
    for name in toolsets:
        if name not in names and not context.leniency.leave_out("tools", " (mcp_toolset)"):
            raise InvalidField("tools", "has an mcp_toolset of a server that is not in mcp_servers", given=name)
    selected: dict[str, Selection] = {}
    for index, server in enumerate(body.mcp_servers or ()):
        at = None if server.name in usable else _address(server, index, services)
        if server.name in usable or at is not None:
            allows = _Allowed(server, toolsets.get(server.name))
            selected[server.name] = Selection(server.name, allows, address=at)
            if server.authorization_token and at is None:
                _leave_out(context, f"mcp_servers[{index}].authorization_token", "", server.name)
        else:
            _leave_out(context, f"mcp_servers[{index}]", "", server.name)
    tools = await find_tools(services, context, body.model, list(selected.values())) if selected else []
    for tool in tools:
        if tool.needs_approval:
            context.leniency.note([f"mcp_servers ({tool.server}: {tool.info.name} needs an approval)"])
    return {name: [tool for tool in tools if tool.server == name and not tool.needs_approval] for name in selected}


def _address(server: McpServer, index: int, services: Services) -> ServerAddress | None:
    """The address of a tool server that the request names by URL, in the entry `index` of `mcp_servers`; None if the
    operator does not allow this host.

    Raises InvalidField for an invalid name or token.
    """
    try:
        found = address_of(services, server.url, server.authorization_token)
    except ValueError as error:
        raise InvalidField(f"mcp_servers[{index}].authorization_token", str(error)) from None
    if found is not None and not is_name(server.name):
        raise InvalidField(f"mcp_servers[{index}].name", NAME_RULE, given=server.name)
    return found


def _leave_out(context: RequestContext, path: str, remark: str, name: str) -> None:
    if not context.leniency.leave_out(path, remark):
        rule = (
            "must be of a tool server that this request may use ([mcp.NAME] in the configuration file), or at a host "
            "that the operator allows (GENAI_MCP_HOSTS)"
        )
        raise InvalidField(path, rule, given=name)


class _Allowed:
    """A predicate that says whether a request lets the model call a tool of one tool server, by the request's entry for
    the server and by its toolset, if there is one.
    """

    def __init__(self, server: McpServer, toolset: McpToolset | None) -> None:
        self._older = server.tool_configuration
        self._toolset = toolset

    def __call__(self, tool: ToolInfo) -> bool:
        if self._older is not None:
            allowed = self._older.allowed_tools
            if self._older.enabled is False or (allowed is not None and tool.name not in allowed):
                return False
        return self._toolset is None or self._toolset.allows(tool.name)
