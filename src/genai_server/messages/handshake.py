"""The first message of each side on a connection."""

from msgspec import Struct

from genai_server.generation import Batching, ModelInfo


class Hello(Struct, frozen=True, tag=True):
    """First message of an API process; without the right secret the engine hangs up."""

    secret: str


class Welcome(Struct, frozen=True, tag=True):
    """The engine has loaded its model and takes work on this connection."""

    pid: int
    model: ModelInfo
    batching: Batching
