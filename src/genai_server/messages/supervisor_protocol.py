"""The protocol between an API process and the supervisor: commands about models, tasks of the worker pool, calls of
tool servers (MCP), and the file with the supervisor's address.

Each API process has one connection, with frames as in frames.py. The API process sends `Hello` first. The supervisor
then sends its `ServerStatus`, and again after each change. It answers each `Ask` with a `CommandReply`, after the
status that shows the command's effect, and never waits for an engine.

Each id in `RunTasks`, `StartProcess` and `ReserveSpace` is answered once, by `Done`, `Ended` or `Refused` of the worker
pool. Messages about tools have ids, too: the supervisor answers with one message that repeats the id. While a tool
runs, no engine knows the request. So the API processes also report these requests to the supervisor, which lists and
ends them for operators.
"""

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from genai_server.messages.admin import RequestState
from genai_server.messages.engine_protocol import Hello
from genai_server.messages.frames import ErrorInfo, FrameDecoder
from genai_server.messages.generation_request import Adapter, FinishReason
from genai_server.messages.server_status import ServerStatus

# A file of an image, which an operator may let be large, is within a frame.
MAX_TASK_FRAME_BYTES = 2**32 - 1
_NAME = "supervisor.json"
# The file in the same folder that is locked by a process that starts the supervisor, and by the supervisor while it
# leaves.
LOCK = "lock"


# tasks of the worker pool


class TaskOwner(Struct, frozen=True):
    """The request that a task belongs to. The pool serves tenants (API keys) in turn, and a tenant's requests in
    turn.
    """

    # Stands for the request's API key; "" for all requests without one.
    tenant: str = ""
    # The request's unique id.
    request: str = ""
    # Whether the task may wait for all tasks that are not of low priority.
    low_priority: bool = False


class Task(Struct, frozen=True):
    """A piece of work on untrusted input, such as an image to decode, for one worker process."""

    # The name of a TaskKind.
    kind: str
    owner: TaskOwner
    # The parameters with which a worker process starts, such as the directory of the model whose images it prepares.
    # A process does only tasks of its own kind with parameters equal to its own.
    spec: dict[str, Any]
    # What the process is asked, and the bytes that belong to it.
    question: dict[str, Any]
    data: bytes = b""
    # Maximum seconds until the process has answered.
    timeout: float = 60.0
    # The size of the work, in the unit of the kind.
    cost: int = 0
    # A file that the process writes. It is removed unless the answer reaches the task's caller.
    target: str = ""


class RunTasks(Struct, frozen=True, tag=True):
    """Run these tasks. The pool accepts all of them or refuses all."""

    # The id of the first one; those of the others follow.
    first_id: int
    tasks: list[Task]
    # The id of the disk space that they write into, if they do.
    space: int | None = None


class StartProcess(Struct, frozen=True, tag=True):
    """Start a worker process of this kind before its first task arrives. Nothing is started if a process of this kind
    is idle, or if enough other processes are.
    """

    id: int
    kind: str
    # As in `Task`.
    spec: dict[str, Any]


class ReserveSpace(Struct, frozen=True, tag=True):
    """Reserve this many bytes of the limited disk space for prepared media, as soon as they are free."""

    id: int
    owner: TaskOwner
    num_bytes: int


class ResizeSpace(Struct, frozen=True, tag=True):
    """Reduce a reservation of disk space to this many bytes. With 0, the reservation ends, or the wait for it. The pool
    sends no answer.

    Bytes into which tasks may still write are freed when those tasks have ended.
    """

    id: int
    num_bytes: int


class CancelTask(Struct, frozen=True, tag=True):
    """The API process no longer waits for a task. The task's file is removed when the task has ended."""

    id: int


class Done(Struct, frozen=True, tag=True):
    """The answer to a task. The message also confirms that a process has started or disk space is reserved; its answer
    is then empty.
    """

    id: int
    answer: dict[str, Any]


class Ended(Struct, frozen=True, tag=True):
    """A task failed because its worker process ended without an answer."""

    id: int
    # How it ended.
    reason: str
    # Whether it was ended because the task took too long; otherwise it died.
    timed_out: bool


class Refused(Struct, frozen=True, tag=True):
    """The pool did not run a task, for this reason."""

    id: int
    error: ErrorInfo


ToPool = RunTasks | StartProcess | ReserveSpace | ResizeSpace | CancelTask
FromPool = Done | Ended | Refused


# calls of tool servers


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

    Answered by `MatchingRequests`.
    """

    id: int
    # Only the request with this unique id or, if there is none, all with this id.
    name: str | None = None
    # Only requests of these models and devices.
    model_devices: list[tuple[str, str]] | None = None
    # Ends those that are found, for this reason.
    end: FinishReason | None = None


class MatchingRequests(Struct, frozen=True, tag=True):
    """The requests that match a `FindRequests`."""

    id: int
    requests: list[ToolRequest]


class EndRequest(Struct, frozen=True, tag=True):
    """An operator ends the reported request with this id, for this reason."""

    id: int
    reason: FinishReason


ToToolServers = ListTools | RunTool | StopTool | HoldRequest | ReleaseRequest | FindRequests
FromToolServers = ToolList | ToolOutput | ToolServerFailed | MatchingRequests | EndRequest


# commands


class LoadModel(Struct, frozen=True, tag=True):
    """Serve the model in the directory `path` under a name. A model that has this name and has failed or is unloaded is
    replaced.
    """

    name: str
    path: str
    # At least one; each gets an engine.
    devices: list[str]
    # A file or a name, in place of the model's own; "" for the model's own.
    chat_template: str = ""
    # Whether it is loaded now; otherwise the first request for it loads it.
    at_once: bool = True
    # The directory of its draft model; "" for none.
    draft_model: str = ""


class UnloadModel(Struct, frozen=True, tag=True):
    """Stop serving a model. New requests for it are refused at once; running ones may end within `timeout` seconds."""

    name: str
    # Maximum seconds for running requests to end.
    timeout: float


class SetAlias(Struct, frozen=True, tag=True):
    """Give a model another name, or remove such a name."""

    alias: str
    # The model's name; None removes the alias.
    name: str | None


class KeepModel(Struct, frozen=True, tag=True):
    """Set for how many seconds without a request a model stays loaded. The value is forgotten when the model is
    unloaded.
    """

    name: str
    # None for no limit.
    seconds: float | None


class WantModel(Struct, frozen=True, tag=True):
    """A request waits for a model that is not loaded. The API process repeats the command as long as the request
    waits.
    """

    name: str


class AddAdapter(Struct, frozen=True, tag=True):
    """Let requests choose a LoRA adapter that all engines of its model have loaded."""

    model: str
    adapter: Adapter


class RemoveAdapter(Struct, frozen=True, tag=True):
    """Let no new request choose the LoRA adapter with this id."""

    model: str
    id: str


class EndServer(Struct, frozen=True, tag=True):
    """End the engines and the supervisor as soon as the last API process has disconnected. The sender makes sure that
    no new API process connects.
    """


Command = LoadModel | UnloadModel | SetAlias | KeepModel | WantModel | AddAdapter | RemoveAdapter | EndServer


# the connection


class Ask(Struct, frozen=True, tag=True):
    """Ask the supervisor to carry out a command."""

    # Numbers the call within its connection.
    call: int
    command: Command


class CommandReply(Struct, frozen=True, tag=True):
    """The supervisor's answer to `Ask`: it has carried out the command, or reports why it could not."""

    call: int
    # Why it failed; None if it succeeded.
    error: ErrorInfo | None = None


ToSupervisor = Hello | Ask | ToPool | ToToolServers
FromSupervisor = ServerStatus | CommandReply | FromPool | FromToolServers


def supervisor_decoder(max_bytes: int = MAX_TASK_FRAME_BYTES) -> FrameDecoder[ToSupervisor]:
    """A decoder of the messages that the supervisor receives from an API process, in frames of at most `max_bytes`
    bytes.
    """
    return FrameDecoder(msgspec.msgpack.Decoder(list[ToSupervisor]), max_bytes)


def supervisor_client_decoder() -> FrameDecoder[FromSupervisor]:
    """A decoder of the messages that an API process receives from the supervisor."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[FromSupervisor]), MAX_TASK_FRAME_BYTES)


# the start


class SupervisorLaunch(Struct, frozen=True):
    """The parameters with which a supervisor process is started, as JSON on its standard input."""

    # Where API processes look for it.
    folder: str
    # The server's settings, by their names.
    settings: dict[str, object]
    # The process id of the server's first process: the only API process, or the parent of all.
    first: int


class SupervisorAddress(Struct, frozen=True):
    """The address and secret of a running supervisor, in a file that only the server's user can read."""

    # A Unix socket's path, or host:port.
    address: str
    # Sent by each API process before anything else, because any local user can connect to a port.
    secret: str
    # The supervisor's process id.
    pid: int = 0


def write_address(folder: Path, address: SupervisorAddress) -> None:
    """Write the file with the supervisor's address into the runtime folder, atomically. Raises OSError."""
    new = folder / f"{_NAME}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(address))
    new.replace(folder / _NAME)


def read_address(folder: Path) -> SupervisorAddress:
    """Read the address of the supervisor that uses this runtime folder.

    Raises OSError if there is no such file, and msgspec.DecodeError if the file is damaged.
    """
    return msgspec.json.decode((folder / _NAME).read_bytes(), type=SupervisorAddress)
