"""The queue of events for the engine's loop: messages of API processes and other events, from any thread."""

from queue import SimpleQueue

from msgspec import Struct

from genai_server.engine.sampling.grammar import Compiled
from genai_server.engine.sequence import Sequence
from genai_server.messages.admin import AdminCall
from genai_server.messages.generation import Cancel, Stop, Submit


class Connected(Struct, frozen=True):
    """An API process has connected."""


class Disconnected(Struct, frozen=True):
    """An API process has gone; its requests have no reader any more."""


class Leave(Struct, frozen=True):
    """The engine must end; running requests are lost."""


class GrammarCompiled(Struct, frozen=True):
    """The grammar that a sequence waits for is compiled, or has failed."""

    sequence: Sequence
    compiled: Compiled


Message = Submit | Cancel | Stop | AdminCall | Connected | Disconnected | GrammarCompiled | Leave
# Events, each with the number of the connection that it concerns.
Inbox = SimpleQueue[tuple[int, Message]]
