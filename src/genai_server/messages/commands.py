"""Commands that API processes send to the supervisor. The supervisor answers each at once, without waiting for an
engine.
"""

from msgspec import Struct

from genai_server.messages.generation_request import Adapter


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
    """End the engines and the supervisor as soon as the last API process has disconnected; no new one will connect."""


Command = LoadModel | UnloadModel | SetAlias | KeepModel | WantModel | AddAdapter | RemoveAdapter | EndServer
