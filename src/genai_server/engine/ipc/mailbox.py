"""What reaches the engine's loop from any thread, and what it sends to the API processes."""

from collections import Counter
from collections.abc import Callable, Collection
from queue import SimpleQueue

from msgspec import Struct, structs

from genai_server.engine.sampling.grammar import Compiled
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.sequence import Sequence
from genai_server.messages.admin import AdminCall
from genai_server.messages.figures import Figures, Load
from genai_server.messages.protocol import Cancel, Stop, Submit, ToApi


class Connected(Struct, frozen=True):
    """An API process has connected."""


class Disconnected(Struct, frozen=True):
    """An API process has disconnected; its requests end."""


class Leave(Struct, frozen=True):
    """The engine is to end. Running requests are lost."""


class GrammarCompiled(Struct, frozen=True):
    """The grammar that a sequence waits for is compiled, or cannot be."""

    sequence: Sequence
    compiled: Compiled


Message = Submit | Cancel | Stop | AdminCall | Connected | Disconnected | GrammarCompiled | Leave
# Each with the number of the connection that it concerns.
Inbox = SimpleQueue[tuple[int, Message]]

# Gives messages to a connection; must not block.
Send = Callable[[int, list[ToApi]], None]


class Outbox:
    """Belongs to the loop's thread; keeps in mind which connections there are, and what each knows of the load."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._gathered: dict[int, list[ToApi]] = {}
        self._loads: dict[int, Load] = {}
        self._figures: dict[int, Figures] = {}

    def connect(self, connection: int) -> None:
        """An API process has attached, and knows nothing yet."""
        self._loads[connection] = Load()

    def disconnect(self, connection: int) -> None:
        """It has gone, if it was ever connected."""
        self._loads.pop(connection, None)
        self._figures.pop(connection, None)

    def tell(self, connection: int, *messages: ToApi) -> None:
        """Say something at the next delivery."""
        self._gathered.setdefault(connection, []).extend(messages)

    def deliver(self) -> None:
        """Send what has gathered, all that is for one connection in one piece: its process wakes once, not per row."""
        for connection, messages in self._gathered.items():
            self._send(connection, messages)
        self._gathered.clear()

    def tell_figures(self, figures: Figures) -> None:
        """Tell each API process what has been counted, if it does not know."""
        for connection in self._loads:
            if self._figures.get(connection) != figures:
                self._figures[connection] = figures
                self.tell(connection, figures)

    def tell_load(self, scheduler: Scheduler, accepted: Collection[Sequence], *, terminated: bool) -> None:
        """Tell each API process what has changed since it was told; `accepted` are those that run or wait to run."""
        running = len(scheduler.running)
        waiting = len(accepted) - running
        room, room_tokens = scheduler.room(), scheduler.room_tokens()
        own = Counter(sequence.origin[0] for sequence in accepted)
        for connection, last in self._loads.items():
            others = len(accepted) - own[connection]
            load = Load(running, waiting, others, terminated, room, room_tokens, last.retry_after, scheduler.capacity)
            if load != last:
                # Not kept up to date while nothing else changes: it would change by itself.
                retry_after = scheduler.queue_wait() if 0 in (room, room_tokens) else 0
                self._loads[connection] = structs.replace(load, retry_after=retry_after)
                self.tell(connection, self._loads[connection])
