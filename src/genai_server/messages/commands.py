"""Commands of API processes to the supervisor: one for each connection, over a socket in its folder.

API processes send them with `send_command`, and `supervisor/command_listener` executes them. Both sides prove that they
know the status file's secret before anything is read. Commands are MessagePack; nothing is pickled.
"""

from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import msgspec
from msgspec import Struct

from genai_server.errors import NoEngineReady
from genai_server.messages.error import ErrorInfo
from genai_server.messages.generation_request import Adapter
from genai_server.messages.status_file import ServerStatus

# Seconds that one side waits for the other. No command waits for an engine.
COMMAND_TIMEOUT = 10.0


class LoadModel(Struct, frozen=True, tag=True):
    """Serve the model in this directory by this name, in place of a failed or unloaded one."""

    name: str
    path: str
    # At least one; each gets an engine.
    devices: list[str]
    # A file or a name, in place of the model's own; "" for the model's own.
    chat_template: str = ""
    # Whether it is loaded with the first request for it instead of now.
    at_once: bool = True
    # The directory of its draft model; "" for none.
    draft_model: str = ""


class UnloadModel(Struct, frozen=True, tag=True):
    """Stop serving a model. New requests are refused at once."""

    name: str
    # Maximum seconds for running requests to end.
    timeout: float


class SetAlias(Struct, frozen=True, tag=True):
    """Give a model one more name, or remove that name."""

    alias: str
    # The model's name; None removes the alias.
    name: str | None


class KeepModel(Struct, frozen=True, tag=True):
    """Set how long a model stays loaded without a request; valid until it is unloaded."""

    name: str
    # None for no limit.
    seconds: float | None


class WantModel(Struct, frozen=True, tag=True):
    """A request waits for this model. Repeated while it waits."""

    name: str


class AddAdapter(Struct, frozen=True, tag=True):
    """Let requests choose this adapter of a model, which its engines have loaded."""

    model: str
    adapter: Adapter


class RemoveAdapter(Struct, frozen=True, tag=True):
    """Let no new request choose the adapter of this id."""

    model: str
    id: str


Command = LoadModel | UnloadModel | SetAlias | KeepModel | WantModel | AddAdapter | RemoveAdapter


class CommandReply(Struct, frozen=True):
    """Answers one command."""

    # Why the command failed; None if it succeeded.
    error: ErrorInfo | None = None


def send_command(server_status: ServerStatus, command: Command) -> None:
    """Send a command to this status's supervisor; blocks until it is done.

    Raises the error in the supervisor's reply, and NoEngineReady without a reply.
    """
    try:
        with Client(server_status.control, authkey=server_status.secret.encode()) as connection:
            connection.send_bytes(msgspec.msgpack.encode(command))
            if not connection.poll(COMMAND_TIMEOUT):
                raise NoEngineReady(f"the supervisor has not answered for {COMMAND_TIMEOUT:.0f} s")
            reply = msgspec.msgpack.decode(connection.recv_bytes(), type=CommandReply)
    except (OSError, EOFError, AuthenticationError, ValueError) as error:
        raise NoEngineReady(f"the supervisor cannot be reached: {error}") from None
    if reply.error is not None:
        raise reply.error.to_error()
