"""What API processes tell the supervisor: one command a connection, over a socket in its folder.

`engine_client/commands` sends, `supervisor/command_listener` obeys. Both sides prove that they know the status file's
secret before anything is read; what is sent is MessagePack, nothing is pickled.
"""

from msgspec import Struct

from genai_server.generation import Adapter
from genai_server.messages.error import ErrorInfo

# Seconds that one side waits for the other; no command waits for an engine.
COMMAND_TIMEOUT = 10.0


class LoadModel(Struct, frozen=True, tag=True):
    """Serve the model in this directory by this name, in place of one which has failed or is unloaded."""

    name: str
    path: str
    # At least one; each gets an engine.
    devices: list[str]
    # A file or a name, in place of the model's own; "" for the model's own.
    chat_template: str = ""


class UnloadModel(Struct, frozen=True, tag=True):
    """Serve the model no more; new requests are refused at once."""

    name: str
    # Seconds that running requests have at most.
    timeout: float


class SetAlias(Struct, frozen=True, tag=True):
    """Let a model be known by another name, too."""

    alias: str
    # The model's name; None removes the alias.
    name: str | None


class WantModel(Struct, frozen=True, tag=True):
    """A request waits for this model; repeated for as long as it does."""

    name: str


class AddAdapter(Struct, frozen=True, tag=True):
    """Let requests choose this adapter of a model; its engines have loaded it."""

    model: str
    adapter: Adapter


class RemoveAdapter(Struct, frozen=True, tag=True):
    """Let no more requests choose the adapter of this id."""

    model: str
    id: str


Command = LoadModel | UnloadModel | SetAlias | WantModel | AddAdapter | RemoveAdapter


class CommandReply(Struct, frozen=True):
    """Answers one command."""

    # Why it was not obeyed; None if it was.
    error: ErrorInfo | None = None
