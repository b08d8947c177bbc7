"""The protocol between an API process and the supervisor: commands, other messages, and the file with the supervisor's
address.

Each API process has one connection, with frames as in protocol.py. The API process sends `Hello` first. The supervisor
then sends its `ServerStatus`, and again after each change. It answers each `Ask` with a `CommandReply`, after the
status that shows the command's effect, and never waits for an engine. The messages of the worker pool are in
worker_tasks.py, those about tools in tool_servers.py.
"""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from genai_server.messages.error import ErrorInfo
from genai_server.messages.generation_request import Adapter
from genai_server.messages.protocol import FrameDecoder, Hello
from genai_server.messages.server_status import ServerStatus
from genai_server.messages.tool_servers import FromToolServers, ToToolServers
from genai_server.messages.worker_tasks import MAX_FRAME_BYTES, FromPool, ToPool

_NAME = "supervisor.json"
# The file in the same folder that is locked by a process that starts the supervisor, and by the supervisor while it
# leaves.
LOCK = "lock"


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


def supervisor_decoder(max_bytes: int = MAX_FRAME_BYTES) -> FrameDecoder[ToSupervisor]:
    """A decoder of the messages that the supervisor receives from an API process, in frames of at most `max_bytes`
    bytes.
    """
    return FrameDecoder(msgspec.msgpack.Decoder(list[ToSupervisor]), max_bytes)


def supervisor_client_decoder() -> FrameDecoder[FromSupervisor]:
    """A decoder of the messages that an API process receives from the supervisor."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[FromSupervisor]), MAX_FRAME_BYTES)


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
