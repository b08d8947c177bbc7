"""What an API process and the supervisor, which owns the tool servers, send each other about tools.

The API process numbers each question within its connection; the supervisor answers each with one message.
"""

from msgspec import Struct


class ListTools(Struct, frozen=True, tag=True):
    """Which tools has a server? Starts it if it does not run. Answered by `ToolList`."""

    id: int
    server: str


class RunTool(Struct, frozen=True, tag=True):
    """Run a tool. Answered by `ToolOutput`."""

    id: int
    server: str
    tool: str
    # A JSON object as text.
    arguments: bytes
    # How long the call may take, if that is less than the server's own limit.
    seconds: float
    # The API key's tenant: tenants share the calls that may run at once.
    tenant: str = ""


class StopTool(Struct, frozen=True, tag=True):
    """Nobody waits for the answer to this question any more, and none is sent."""

    id: int


class ToolInfo(Struct, frozen=True):
    """A tool of an MCP server, as the server describes it to the supervisor, and the supervisor to API processes."""

    name: str
    description: str
    # A JSON schema as text.
    parameters: bytes
    # Whether the tool changes nothing, by what its server says.
    is_read_only: bool = False


class ToolList(Struct, frozen=True, tag=True):
    """The tools of a server that requests may use."""

    id: int
    tools: list[ToolInfo]


class ToolOutput(Struct, frozen=True, tag=True):
    """What a tool has returned, or why it has not."""

    id: int
    text: str
    is_error: bool = False


class ToolServerFailed(Struct, frozen=True, tag=True):
    """A server could not list its tools."""

    id: int
    reason: str


ToToolServers = ListTools | RunTool | StopTool
FromToolServers = ToolList | ToolOutput | ToolServerFailed
