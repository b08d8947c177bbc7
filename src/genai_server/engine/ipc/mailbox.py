"""The queues of an engine's loop: messages that it receives from other threads, and messages for the API processes."""

from collections import Counter
from collections.abc import Callable, Collection
from queue import SimpleQueue

from msgspec import Struct, structs

from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.messages.admin import AdminCall
from genai_server.messages.engine_protocol import Cancel, Figures, Load, Stop, Submit, ToApi
from genai_server.messages.launch import Resize


class Connected(Struct, frozen=True):
    """Message to the engine's loop: an API process has connected."""


class Disconnected(Struct, frozen=True):
    """Message to the engine's loop: an API process has disconnected, so its requests must be dropped."""


# A function that the thread of the engine's loop calls for another thread, for instance to receive a result.
Call = Callable[[], None]
Message = Submit | Cancel | Stop | AdminCall | Connected | Disconnected | Resize | Call
# Events, each with the number of the connection that it concerns.
Inbox = SimpleQueue[tuple[int, Message]]

# Sends messages to a connection; must not block.
Send = Callable[[int, list[ToApi]], None]


class Outbox:
    """Collects messages for the API processes until they are delivered, and remembers the last load report and counters
    that each process has received, so that only changes are sent.

    Used by the thread of the engine's loop only.
    """

    def __init__(self, send: Send) -> None:
        self.num_connected = 0  # API processes that have ever connected
        self._send = send
        self._gathered: dict[int, list[ToApi]] = {}
        self._loads: dict[int, Load] = {}
        self._figures: dict[int, Figures] = {}

    def connect(self, connection: int) -> None:
        """Add the connection with this number to those that receive load reports and counters."""
        self.num_connected += 1
        self._loads[connection] = Load()

    def disconnect(self, connection: int) -> None:
        """Remove the connection with this number, if there is one."""
        self._loads.pop(connection, None)
        self._figures.pop(connection, None)

    def send(self, connection: int, *messages: ToApi) -> None:
        """Add messages to the next delivery to the API process with this connection number."""
        self._gathered.setdefault(connection, []).extend(messages)

    def deliver(self) -> None:
        """Send the collected messages. Each API process gets its messages in one frame, so that it wakes only once."""
        for connection, messages in self._gathered.items():
            self._send(connection, messages)
        self._gathered.clear()

    def send_figures(self, figures: Figures) -> None:
        """Add the engine's counters to the next delivery to each API process that does not have the same values yet."""
        for connection in self._loads:
            if self._figures.get(connection) != figures:
                self._figures[connection] = figures
                self.send(connection, figures)

    def send_all(self, message: ToApi) -> None:
        """Add a message to the next delivery to each API process."""
        for connection in self._loads:
            self.send(connection, message)

    def send_load(self, scheduler: Scheduler, accepted: Collection[Sequence], *, terminated: bool) -> None:
        """Add a load report to the next delivery to each API process whose last report was different.

        The report has the numbers of running and waiting requests, and the capacity for more. `accepted` are the
        running and waiting sequences. `terminated` says whether an operator has made the device refuse requests.
        """
        in_background = [sequence for sequence in accepted if sequence.low_priority]
        others = [sequence for sequence in accepted if not sequence.low_priority]
        running, low_priority_running = (
            sum(sequence.state is SequenceState.RUNNING for sequence in kind) for kind in (others, in_background)
        )
        capacity, present, waiting_tokens = scheduler.capacity, scheduler.present(), scheduler.waiting_tokens()
        is_full = sum(present.values()) >= capacity.requests
        is_full |= capacity.waiting_tokens is not None and sum(waiting_tokens.values()) >= capacity.waiting_tokens
        own = Counter(sequence.origin[0] for sequence in others)
        for connection, last in self._loads.items():
            load = Load(
                running,
                len(others) - running,
                low_priority_running,
                len(in_background) - low_priority_running,
                len(others) - own[connection],
                terminated,
                present,
                waiting_tokens,
                last.retry_after,
                capacity,
            )
            if load != last:
                # Not sent while nothing else changes, because it changes on its own.
                retry_after = scheduler.queue_wait() if is_full else 0
                self._loads[connection] = structs.replace(load, retry_after=retry_after)
                self.send(connection, self._loads[connection])
