"""What reaches the engine's loop, from any thread: the messages of API processes, and what else happens to it."""

from queue import SimpleQueue

from msgspec import Struct

from genai_server.engine.sampling.grammar import Compiled
from genai_server.engine.sequence import Sequence
from genai_server.messages.admin import AdminCall
from genai_server.messages.protocol import Cancel, Stop, Submit


class Connected(Struct, frozen=True):
    """An API process has attached."""


class Disconnected(Struct, frozen=True):
    """An API process has gone; nobody waits for its requests any more."""


class Leave(Struct, frozen=True):
    """The engine is to end: what runs is lost."""


class GrammarCompiled(Struct, frozen=True):
    """What has come of the grammar that a sequence waits for."""

    sequence: Sequence
    compiled: Compiled


Message = Submit | Cancel | Stop | AdminCall | Connected | Disconnected | GrammarCompiled | Leave
# Each with the number of the connection that it concerns.
Inbox = SimpleQueue[tuple[int, Message]]
