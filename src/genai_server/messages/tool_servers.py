"""What an API process and the supervisor, which owns the tool servers, send each other about tools.

The API process numbers each question within its connection; the supervisor answers each with one message. The
supervisor also knows the requests whose tools are run, of all API processes: while a tool runs, no engine knows them.
"""

from msgspec import Struct

from genai_server.messages.admin import RequestState
from genai_server.messages.generation_request import FinishReason


class ServerAddress(Struct, frozen=True):
    """A tool server that a request names by its URL. The API process has checked its host."""

    url: str
    # Of all requests to the URL.
    headers: dict[str, str] = {}


class ListTools(Struct, frozen=True, tag=True):
    """Which tools has a server? Starts it if it does not run. Answered by `ToolList`."""

    id: int
    server: str
    # Where the server is, if it is none of the configuration file; then each API key's tenant has its own connection.
    address: ServerAddress | None = None
    tenant: str = ""


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
    # As in `ListTools`.
    address: ServerAddress | None = None


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


class ToolRequest(Struct, frozen=True):
    """A request whose tools are run, as operators see it while no engine has it."""

    state: RequestState
    # The model of its last round, and the device; "" before its first.
    model: str
    device: str = ""


class HoldRequest(Struct, frozen=True, tag=True):
    """Know this request until `ReleaseRequest`, in place of what was said of it before. `EndRequest` may follow."""

    id: int
    request: ToolRequest


class ReleaseRequest(Struct, frozen=True, tag=True):
    """The held request of this id has ended."""

    id: int


class FindRequests(Struct, frozen=True, tag=True):
    """Which requests do API processes hold? Answered by `RequestsFound`. Without any field: all."""

    id: int
    # Only the request with this unique id or, if there is none, all with this id.
    name: str | None = None
    # Only requests of these models and devices.
    model_devices: list[tuple[str, str]] | None = None
    # Ends those that are found, for this reason.
    end: FinishReason | None = None


class RequestsFound(Struct, frozen=True, tag=True):
    """The requests that a question is about."""

    id: int
    requests: list[ToolRequest]


class EndRequest(Struct, frozen=True, tag=True):
    """An operator ends the held request of this id."""

    id: int
    reason: FinishReason


ToToolServers = ListTools | RunTool | StopTool | HoldRequest | ReleaseRequest | FindRequests
FromToolServers = ToolList | ToolOutput | ToolServerFailed | RequestsFound | EndRequest
