"""The connection between an API process and its supervisor: the messages, and the file that says where it is.

Each API process has one connection, in the frames of protocol.py. It begins with `Hello`. The supervisor then sends its
`ServerStatus`, and again whenever that changes; it answers each `Ask` with a `CommandReply`, after the status that the
command has changed. The messages of the worker pool are in worker_tasks.py, those about tools in tool_servers.py.
"""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from genai_server.messages.commands import Command
from genai_server.messages.error import ErrorInfo
from genai_server.messages.protocol import FrameDecoder, Hello
from genai_server.messages.server_status import ServerStatus
from genai_server.messages.tool_servers import FromToolServers, ToToolServers
from genai_server.messages.worker_tasks import MAX_FRAME_BYTES, FromPool, ToPool

_NAME = "supervisor.json"
# The file in the same folder that is locked by a process that starts the supervisor, and by the supervisor while it
# leaves.
LOCK = "lock"


class Ask(Struct, frozen=True, tag=True):
    """Carry out a command."""

    # Numbers the call within its connection.
    call: int
    command: Command


class CommandReply(Struct, frozen=True, tag=True):
    """The command has been carried out, or has failed."""

    call: int
    # Why it failed; None if it succeeded.
    error: ErrorInfo | None = None


ToSupervisor = Hello | Ask | ToPool | ToToolServers
FromSupervisor = ServerStatus | CommandReply | FromPool | FromToolServers


def supervisor_decoder(max_bytes: int = MAX_FRAME_BYTES) -> FrameDecoder[ToSupervisor]:
    """Decodes what a supervisor receives from an API process."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[ToSupervisor]), max_bytes)


def supervisor_client_decoder() -> FrameDecoder[FromSupervisor]:
    """Decodes what an API process receives from its supervisor."""
    return FrameDecoder(msgspec.msgpack.Decoder(list[FromSupervisor]), MAX_FRAME_BYTES)


class SupervisorLaunch(Struct, frozen=True):
    """What a supervisor is started with, as JSON."""

    # Where API processes look for it.
    folder: str
    # The server's settings, by their names.
    settings: dict[str, object]
    # The process id of the server's first process: the only API process, or the parent of all.
    first: int


class SupervisorAddress(Struct, frozen=True):
    """Where a supervisor listens; a file that only the server's user can read."""

    # A Unix socket's path, or host:port.
    address: str
    # Sent by each API process before anything else, because any local user can connect to a port.
    secret: str
    # The supervisor's process id.
    pid: int = 0


def write_address(folder: Path, address: SupervisorAddress) -> None:
    """Write the file once, whole or not at all. Raises OSError."""
    new = folder / f"{_NAME}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(address))
    new.replace(folder / _NAME)


def read_address(folder: Path) -> SupervisorAddress:
    """Where the supervisor of a folder listens. Raises OSError if none does, and msgspec.DecodeError."""
    return msgspec.json.decode((folder / _NAME).read_bytes(), type=SupervisorAddress)
