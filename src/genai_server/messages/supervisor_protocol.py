"""The protocol between an API process and the supervisor (the process that starts engines, and runs the worker pool and
the tool servers): commands about models, tasks of the worker pool, calls of tool servers (MCP), and the file with the
supervisor's address.

Each API process has one connection, with frames as in frames.py. The API process sends `Hello` first. The supervisor
then sends its `ServerStatus`, and sends it again after each change. It answers each `Ask` with a `CommandReply`, after
the status that shows the command's effect, and never waits for an engine.

The worker pool answers each id in `RunTasks`, `StartProcess` and `ReserveSpace` once, with `Done`, `Ended` or
`Refused`. Messages about tools have ids, too: the supervisor answers with one message that repeats the id. While a tool
runs, no engine knows the request. So the API processes also report such requests to the supervisor (`HoldRequest`),
which lists and ends them for operators.
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
    """The request that a task of the worker pool belongs to, its tenant (API key), and whether it has low priority. The
    pool serves tenants in turn, and the requests of one tenant in turn.
    """

    # Stands for the request's API key; "" for all requests without one.
    tenant: str = ""
    # The request's unique id.
    request: str = ""
    # Whether the task may wait for all tasks that are not of low priority.
    low_priority: bool = False


class Task(Struct, frozen=True):
    """A piece of work on untrusted input for one process of the worker pool, such as an image to decode: the question
    to the process, its data, the time limit in seconds, and the size of the work.
    """

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
    """An API process asks the worker pool, whose processes handle untrusted input, to run tasks. Their ids are
    consecutive numbers from `first_id` on. The pool accepts all of the tasks or refuses all, and answers each task with
    `Done`, `Ended` or `Refused`.
    """

    # The id of the first one; those of the others follow.
    first_id: int
    tasks: list[Task]
    # The id of the disk space that they write into, if they do.
    space: int | None = None


class StartProcess(Struct, frozen=True, tag=True):
    """An API process asks the worker pool to start a worker process for one kind of tasks before the first such task
    arrives. Nothing is started if a process of this kind is idle, or if enough other processes are. The pool answers
    with `Done`, or with `Refused` or `Ended` if the start fails.
    """

    id: int
    kind: str
    # As in `Task`.
    spec: dict[str, Any]


class ReserveSpace(Struct, frozen=True, tag=True):
    """An API process asks the worker pool to reserve `num_bytes` bytes of the limited disk space for prepared media.
    The pool answers with `Done` as soon as the bytes are free and reserved.
    """

    id: int
    owner: TaskOwner
    num_bytes: int


class ResizeSpace(Struct, frozen=True, tag=True):
    """An API process reduces a reservation of disk space to `num_bytes` bytes. With 0, the reservation ends, or the
    wait for it if it was not granted yet. The pool sends no answer.

    Bytes into which tasks may still write are freed when those tasks have ended.
    """

    id: int
    num_bytes: int


class CancelTask(Struct, frozen=True, tag=True):
    """An API process no longer waits for the task with this id. The file that the task writes is removed when the task
    has ended.
    """

    id: int


class Done(Struct, frozen=True, tag=True):
    """The worker pool's answer to a task. The message also confirms that a worker process has started (`StartProcess`)
    or that disk space is reserved (`ReserveSpace`); `answer` is then empty.
    """

    id: int
    answer: dict[str, Any]


class Ended(Struct, frozen=True, tag=True):
    """The worker pool reports that a task failed because its worker process died, or was ended because the task took
    too long.
    """

    id: int
    # How it ended.
    reason: str
    # Whether it was ended because the task took too long; otherwise it died.
    timed_out: bool


class Refused(Struct, frozen=True, tag=True):
    """The worker pool reports that it has not run a task. `error` has the reason, such as too much waiting work."""

    id: int
    error: ErrorInfo


ToPool = RunTasks | StartProcess | ReserveSpace | ResizeSpace | CancelTask
FromPool = Done | Ended | Refused


# calls of tool servers


class ServerAddress(Struct, frozen=True):
    """The URL, with HTTP headers, of a tool server (MCP) that a request names. The API process has already checked that
    the host is allowed.
    """

    url: str
    # Headers of all requests to the URL.
    headers: dict[str, str] = {}


class ListTools(Struct, frozen=True, tag=True):
    """An API process asks for the tools of a tool server (MCP), which the supervisor starts if it does not run. The
    supervisor answers with `ToolList` or `ToolServerFailed`.
    """

    id: int
    server: str
    # Where the server is, if it is none of the configuration file; then each API key's tenant has its own connection.
    address: ServerAddress | None = None
    tenant: str = ""


class RunTool(Struct, frozen=True, tag=True):
    """An API process asks the supervisor to call a tool of a tool server (MCP), for at most `seconds` seconds. The
    supervisor answers with `ToolOutput`.
    """

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
    """An API process no longer waits for the answer to its `ListTools` or `RunTool` with this id. The supervisor stops
    the tool or the start of the tool server, and sends no answer.
    """

    id: int


class ToolInfo(Struct, frozen=True):
    """A tool of a tool server (MCP), as the server describes it: name, description, and the JSON schema of its
    parameters.
    """

    name: str
    description: str
    # A JSON schema as text.
    parameters: bytes
    # Whether the tool changes nothing, by what its server says.
    is_read_only: bool = False


class ToolList(Struct, frozen=True, tag=True):
    """The supervisor's answer to `ListTools`: the tools of the tool server that requests may use."""

    id: int
    tools: list[ToolInfo]


class ToolOutput(Struct, frozen=True, tag=True):
    """The supervisor's answer to `RunTool`: the text that the tool has returned, or an error message."""

    id: int
    text: str
    is_error: bool = False


class ToolServerFailed(Struct, frozen=True, tag=True):
    """The supervisor's answer to `ListTools` if the tool server could not be started or could not list its tools."""

    id: int
    reason: str


class ToolRequest(Struct, frozen=True):
    """A request for which the server runs tools, as operators see it in the list of requests while no engine has it."""

    state: RequestState
    # The model of its last round, and the device; "" before its first.
    model: str
    device: str = ""


class HoldRequest(Struct, frozen=True, tag=True):
    """An API process reports to the supervisor a request for which tools run, so that operators can find and end it.

    A second message with this id replaces the first one. The report holds until the API process sends `ReleaseRequest`
    with this id. Until then the supervisor may send `EndRequest`, upon which the API process ends the request.
    """

    id: int
    request: ToolRequest


class ReleaseRequest(Struct, frozen=True, tag=True):
    """An API process withdraws its report (`HoldRequest`) of the request with this id, because no tools run for the
    request any more.
    """

    id: int


class FindRequests(Struct, frozen=True, tag=True):
    """An API process asks the supervisor for the requests for which tools run, in any API process. Only requests that
    match all given fields are found. If `end` is given, they are ended for that reason.

    The supervisor answers with `MatchingRequests`.
    """

    id: int
    # Only the request with this unique id or, if there is none, all with this id.
    name: str | None = None
    # Only requests of these models and devices.
    model_devices: list[tuple[str, str]] | None = None
    # Ends those that are found, for this reason.
    end: FinishReason | None = None


class MatchingRequests(Struct, frozen=True, tag=True):
    """The supervisor's answer to `FindRequests`: the requests that match it."""

    id: int
    requests: list[ToolRequest]


class EndRequest(Struct, frozen=True, tag=True):
    """The supervisor tells an API process that an operator ends the request that was reported under this id
    (`HoldRequest`), and for which reason.
    """

    id: int
    reason: FinishReason


ToToolServers = ListTools | RunTool | StopTool | HoldRequest | ReleaseRequest | FindRequests
FromToolServers = ToolList | ToolOutput | ToolServerFailed | MatchingRequests | EndRequest


# commands


class LoadModel(Struct, frozen=True, tag=True):
    """A command to serve the model in the directory `path` under a name, with an engine on each of `devices`. If a
    model with this name has failed or is unloaded, it is replaced.
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
    """A command to stop serving a model. New requests for it are refused at once; running ones may end within `timeout`
    seconds.
    """

    name: str
    # Maximum seconds for running requests to end.
    timeout: float


class SetAlias(Struct, frozen=True, tag=True):
    """A command to give the model `name` the further name `alias`; with None as `name`, to remove that alias."""

    alias: str
    # The model's name; None removes the alias.
    name: str | None


class KeepModel(Struct, frozen=True, tag=True):
    """A command that sets for how many seconds without a request a model stays loaded; None means no limit. The value
    is forgotten when the model is unloaded.
    """

    name: str
    # None for no limit.
    seconds: float | None


class WantModel(Struct, frozen=True, tag=True):
    """A command that says that a request waits for a model which is not loaded, so that the supervisor loads the model.
    The API process repeats the command as long as the request waits.
    """

    name: str


class AddAdapter(Struct, frozen=True, tag=True):
    """A command to let requests choose a LoRA adapter. All engines of the adapter's model must have loaded it
    before.
    """

    model: str
    adapter: Adapter


class RemoveAdapter(Struct, frozen=True, tag=True):
    """A command to let no new request choose the LoRA adapter with this id of a model."""

    model: str
    id: str


class EndServer(Struct, frozen=True, tag=True):
    """A command to end the engines and the supervisor as soon as the last API process has disconnected. The sender
    makes sure that no new API process connects.
    """


Command = LoadModel | UnloadModel | SetAlias | KeepModel | WantModel | AddAdapter | RemoveAdapter | EndServer


# the connection


class Ask(Struct, frozen=True, tag=True):
    """An API process asks the supervisor to carry out a command, such as `LoadModel`. The supervisor answers with
    `CommandReply`, which repeats the number `call`.
    """

    # Numbers the call within its connection.
    call: int
    command: Command


class CommandReply(Struct, frozen=True, tag=True):
    """The supervisor's answer to `Ask`: it has carried out the command, or `error` says why it could not."""

    call: int
    # Why it failed; None if it succeeded.
    error: ErrorInfo | None = None


ToSupervisor = Hello | Ask | ToPool | ToToolServers
FromSupervisor = ServerStatus | CommandReply | FromPool | FromToolServers


def supervisor_decoder(max_bytes: int = MAX_TASK_FRAME_BYTES) -> FrameDecoder[ToSupervisor]:
    """Return a new decoder of the messages that the supervisor receives from an API process. A frame of more than
    `max_bytes` bytes is an error.
    """
    return FrameDecoder(msgspec.msgpack.Decoder(list[ToSupervisor]), max_bytes)


def supervisor_client_decoder() -> FrameDecoder[FromSupervisor]:
    """Return a new decoder of the messages that an API process receives from the supervisor."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[FromSupervisor]), MAX_TASK_FRAME_BYTES)


# the start


class SupervisorLaunch(Struct, frozen=True):
    """The parameters with which a supervisor process is started, as JSON on its standard input: its folder, the
    server's settings, and the id of the server's first process.
    """

    # Where API processes look for it.
    folder: str
    # The server's settings, by their names.
    settings: dict[str, object]
    # The process id of the server's first process: the only API process, or the parent of all.
    first: int


class SupervisorAddress(Struct, frozen=True):
    """The address, secret and process id of a running supervisor. They are stored in a file that only the server's user
    can read, by which API processes find the supervisor.
    """

    # A Unix socket's path, or host:port.
    address: str
    # Sent by each API process before anything else, because any local user can connect to a port.
    secret: str
    # The supervisor's process id.
    pid: int = 0


def write_address(folder: Path, address: SupervisorAddress) -> None:
    """Write the supervisor's address atomically to a file in `folder`, the server's runtime folder. Raises OSError if
    the file cannot be written.
    """
    new = folder / f"{_NAME}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(address))
    new.replace(folder / _NAME)


def read_address(folder: Path) -> SupervisorAddress:
    """Read the address of the supervisor whose runtime folder is `folder`.

    Raises OSError if there is no such file, and msgspec.DecodeError if the file is damaged.
    """
    return msgspec.json.decode((folder / _NAME).read_bytes(), type=SupervisorAddress)
