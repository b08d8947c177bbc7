"""Commands of API processes to the supervisor. None of them waits for an engine."""

from msgspec import Struct

from genai_server.messages.generation_request import Adapter


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


class EndServer(Struct, frozen=True, tag=True):
    """End the engines and the supervisor itself as soon as no API process is connected; none will connect again."""


Command = LoadModel | UnloadModel | SetAlias | KeepModel | WantModel | AddAdapter | RemoveAdapter | EndServer
