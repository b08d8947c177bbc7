"""Messages about MCP tools between an API process and the supervisor, which runs the tool servers.

The API process gives each of its messages an id that is unique within the connection; the supervisor answers with one
message that repeats it. While a tool runs, no engine knows the request. So the API processes also report these requests
to the supervisor, which lists and ends them for operators.
"""

from msgspec import Struct

from genai_server.messages.admin import RequestState
from genai_server.messages.generation_request import FinishReason


class ServerAddress(Struct, frozen=True):
    """The URL of a tool server that a request names. The API process has already checked that the host is allowed."""

    url: str
    # Headers of all requests to the URL.
    headers: dict[str, str] = {}


class ListTools(Struct, frozen=True, tag=True):
    """Ask for the tools of a tool server, which is started if it does not run. Answered by `ToolList` or
    `ToolServerFailed`.
    """

    id: int
    server: str
    # Where the server is, if it is none of the configuration file; then each API key's tenant has its own connection.
    address: ServerAddress | None = None
    tenant: str = ""


class RunTool(Struct, frozen=True, tag=True):
    """Call a tool of a tool server. Answered by `ToolOutput`."""

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
    """The API process no longer waits for the answer to its message with this id. The supervisor stops the tool or the
    start of the tool server, and sends no answer.
    """

    id: int


class ToolInfo(Struct, frozen=True):
    """A tool of an MCP server, as the server describes it."""

    name: str
    description: str
    # A JSON schema as text.
    parameters: bytes
    # Whether the tool changes nothing, by what its server says.
    is_read_only: bool = False


class ToolList(Struct, frozen=True, tag=True):
    """The tools of a tool server that requests may use."""

    id: int
    tools: list[ToolInfo]


class ToolOutput(Struct, frozen=True, tag=True):
    """The text that a tool has returned, or an error message."""

    id: int
    text: str
    is_error: bool = False


class ToolServerFailed(Struct, frozen=True, tag=True):
    """A tool server could not list its tools."""

    id: int
    reason: str


class ToolRequest(Struct, frozen=True):
    """A request whose tools are being run, as operators see it while no engine has it."""

    state: RequestState
    # The model of its last round, and the device; "" before its first.
    model: str
    device: str = ""


class HoldRequest(Struct, frozen=True, tag=True):
    """An API process reports to the supervisor a request of which tools run, so that operators can find and end it.

    A second message with this id replaces the first. The report holds until the API process sends `ReleaseRequest` with
    this id. Until then the supervisor may answer with `EndRequest`, which ends the request.
    """

    id: int
    request: ToolRequest


class ReleaseRequest(Struct, frozen=True, tag=True):
    """The tools of the reported request with this id no longer run."""

    id: int


class FindRequests(Struct, frozen=True, tag=True):
    """Ask for the reported requests of all API processes that match all given fields, and end them if `end` is given.

    Answered by `RequestsFound`.
    """

    id: int
    # Only the request with this unique id or, if there is none, all with this id.
    name: str | None = None
    # Only requests of these models and devices.
    model_devices: list[tuple[str, str]] | None = None
    # Ends those that are found, for this reason.
    end: FinishReason | None = None


class RequestsFound(Struct, frozen=True, tag=True):
    """The requests that match a `FindRequests`."""

    id: int
    requests: list[ToolRequest]


class EndRequest(Struct, frozen=True, tag=True):
    """An operator ends the reported request with this id, for this reason."""

    id: int
    reason: FinishReason


ToToolServers = ListTools | RunTool | StopTool | HoldRequest | ReleaseRequest | FindRequests
FromToolServers = ToolList | ToolOutput | ToolServerFailed | RequestsFound | EndRequest
