"""The engine's connections of API processes (the processes that serve HTTP clients): `Connections` accepts and reads
the sockets, and `Outbox` collects messages for the API processes. Messages for the engine's loop go through a queue,
its inbox.

A separate thread accepts connections, reads, and writes what a socket did not take at once. The thread of the engine's
loop writes directly, because onnxruntime-genai may hold the GIL for a whole forward pass, during which no other thread
could deliver a token.
"""

import contextlib
import hmac
import logging
import os
import selectors
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue

import msgspec
from msgspec import Struct, structs

from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.messages.admin import AdminCall, CancelRequest, ListRequests, SetRuntimeOption
from genai_server.messages.engine_protocol import (
    Cancel,
    Figures,
    Hello,
    Load,
    Stop,
    Submit,
    ToApi,
    ToEngine,
    Welcome,
    engine_decoder,
)
from genai_server.messages.frames import MAX_FRAME_BYTES, encode_frame
from genai_server.messages.generation_request import Batching, ModelInfo
from genai_server.messages.launch import Resize

log = logging.getLogger(__name__)
# An API process with this many unread bytes is stuck. It is disconnected, so that its tokens do not fill the memory.
MAX_BACKLOG_BYTES = 32 * 1024 * 1024
# Maximum bytes before the other side is authenticated: the size of a Hello.
MAX_UNAUTHENTICATED_BYTES = 1024
_ALONE = Batching()


class Connected(Struct, frozen=True):
    """Message to the engine's loop: an API process (a process that serves HTTP clients) has connected to the engine."""


class Disconnected(Struct, frozen=True):
    """Message to the engine's loop: an API process (a process that serves HTTP clients) has disconnected from the
    engine, so its requests must be dropped.
    """


# A function that the thread of the engine's loop calls for another thread, for instance to receive a result.
Call = Callable[[], None]
Message = Submit | Cancel | Stop | AdminCall | Connected | Disconnected | Resize | Call
# Events, each with the number of the connection that it concerns.
Inbox = SimpleQueue[tuple[int, Message]]

# Sends messages to a connection; must not block.
Send = Callable[[int, list[ToApi]], None]


class Outbox:
    """Collects the engine's messages for the API processes until `deliver` sends them, and remembers the last load
    report and counters that each process has received, so that only changes are sent.

    Used by the thread of the engine's loop only. `send` passes a list of messages to the connection with a number, and
    must not block.
    """

    def __init__(self, send: Send) -> None:
        self.num_connected = 0  # API processes that have ever connected
        self._send = send
        self._gathered: dict[int, list[ToApi]] = {}
        self._loads: dict[int, Load] = {}
        self._figures: dict[int, Figures] = {}

    def connect(self, connection: int) -> None:
        """Add the connection with the number `connection`, of an API process, to those that receive load reports and
        counters.
        """
        self.num_connected += 1
        self._loads[connection] = Load()

    def disconnect(self, connection: int) -> None:
        """Send no more load reports and counters to the connection with the number `connection`. Does nothing for an
        unknown number.
        """
        self._loads.pop(connection, None)
        self._figures.pop(connection, None)

    def send(self, connection: int, *messages: ToApi) -> None:
        """Add `messages` to the next delivery to the API process that has the connection number `connection`."""
        self._gathered.setdefault(connection, []).extend(messages)

    def deliver(self) -> None:
        """Send all collected messages. Each API process gets its messages in one frame, so that it wakes only once."""
        for connection, messages in self._gathered.items():
            self._send(connection, messages)
        self._gathered.clear()

    def send_figures(self, figures: Figures) -> None:
        """Add `figures`, the engine's counters, to the next delivery to each API process that has received other values
        or none.
        """
        for connection in self._loads:
            if self._figures.get(connection) != figures:
                self._figures[connection] = figures
                self.send(connection, figures)

    def send_all(self, message: ToApi) -> None:
        """Add `message` to the next delivery to each connected API process."""
        for connection in self._loads:
            self.send(connection, message)

    def send_load(self, scheduler: Scheduler, accepted: Collection[Sequence], *, terminated: bool) -> None:
        """Add a load report to the next delivery to each API process whose last report was different.

        The report has the numbers of running and waiting requests, and the capacity for more, which `scheduler` knows.
        `accepted` are the running and waiting sequences. `terminated` says whether an operator has made the engine
        refuse requests.
        """
        low_priority = [sequence for sequence in accepted if sequence.low_priority]
        normal_priority = [sequence for sequence in accepted if not sequence.low_priority]
        running, low_priority_running = (
            sum(sequence.state is SequenceState.RUNNING for sequence in kind)
            for kind in (normal_priority, low_priority)
        )
        capacity, present, waiting_tokens = scheduler.capacity, scheduler.present(), scheduler.waiting_tokens()
        is_full = sum(present.values()) >= capacity.requests
        is_full |= capacity.waiting_tokens is not None and sum(waiting_tokens.values()) >= capacity.waiting_tokens
        by_connection = Counter(sequence.origin[0] for sequence in normal_priority)
        for connection, last in self._loads.items():
            load = Load(
                running,
                len(normal_priority) - running,
                low_priority_running,
                len(low_priority) - low_priority_running,
                len(normal_priority) - by_connection[connection],
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


class Connection:
    """The connection of one API process, from which the thread of `Connections` reads. Any thread may call `send`; only
    that thread may use the other methods.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.decoder = engine_decoder(MAX_UNAUTHENTICATED_BYTES)
        self.is_welcome = False  # whether the other side has authenticated as an API process
        self._lock = threading.Lock()
        self._backlog = bytearray()

    def send(self, data: bytes) -> bool:
        """Write as much of `data` as the socket takes without blocking, and keep the rest for `flush`. Returns whether
        everything was written. An error of the socket is ignored, because the reading thread sees the end of the
        stream.
        """
        with self._lock:
            self._backlog += data
            return self._write()

    def flush(self) -> bool:
        """Write as much of the data that `send` has kept as the socket takes without blocking. Returns whether
        everything was written.
        """
        with self._lock:
            return self._write()

    @property
    def is_stuck(self) -> bool:
        """Whether more than MAX_BACKLOG_BYTES bytes are unwritten, which means that the API process has stopped
        reading.
        """
        return len(self._backlog) > MAX_BACKLOG_BYTES

    def _write(self) -> bool:
        try:
            while self._backlog:
                sent = self.socket.send(self._backlog)
                del self._backlog[:sent]
        except BlockingIOError:
            return False
        except OSError:
            # The other side has disconnected. The reading thread sees the end of the stream and cleans up.
            self._backlog.clear()
        return True


@dataclass(frozen=True)
class Listener:
    """A listening socket with its address, which is the path of a Unix socket, or host:port of a TCP socket. `listen`
    creates it.
    """

    socket: socket.socket
    address: str


class Connections:
    """Accepts the connections of API processes at `listener`, and puts their messages into the inbox of the engine's
    loop. The engine process creates it, and calls `start`.

    The first message of a connection must contain `secret`, because any local user can connect to a TCP port; any other
    connection is closed. The engine answers with `model` and `batching`, which describe the loaded model and how it
    runs.
    """

    def __init__(self, listener: Listener, secret: str, model: ModelInfo, batching: Batching = _ALONE) -> None:
        self._secret = secret
        self._model = model
        self._batching = batching
        self._connections: dict[int, Connection] = {}
        self._numbers = count()
        self._listener = listener.socket
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        # Wakes the reading thread when there is data to flush.
        self._waker, self._wake = socket.socketpair()
        self._waker.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._waker, selectors.EVENT_READ, None)

    def start(self, inbox: Inbox, interrupt: Callable[[int, ToEngine], None] = lambda number, message: None) -> None:
        """Start the thread that accepts connections and puts the messages that it reads into `inbox`.

        `interrupt` is called in that thread, with the number of a connection and a message, for each message that may
        have to end the forward pass in progress.
        """
        self._inbox = inbox
        self._interrupt = interrupt
        threading.Thread(target=self._serve, name="connections", daemon=True).start()

    def send(self, number: int, messages: list[ToApi]) -> None:
        """Send `messages` to the API process with the connection number `number`, without waiting. Does nothing if the
        process has disconnected.
        """
        connection = self._connections.get(number)
        if connection is not None and not connection.send(encode_frame(messages)):
            with contextlib.suppress(BlockingIOError):  # the thread is awake already
                self._wake.send(b"\0")

    def _serve(self) -> None:
        try:
            while True:
                for key, events in self._selector.select():
                    self._attend(key, events)
        except BaseException:
            # An engine that receives nothing is worse than a dead one, which its supervisor restarts.
            log.exception("internal error in the connections; the engine exits")
            os._exit(1)

    def _attend(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._listener:
            self._accept()
        elif key.fileobj is self._waker:
            self._waker.recv(4096)
            self._watch_writers()
        elif (connection := self._connections.get(key.data)) is not None:  # else it was closed just before
            if events & selectors.EVENT_WRITE and connection.flush():
                self._selector.modify(connection.socket, selectors.EVENT_READ, key.data)
            if events & selectors.EVENT_READ:
                self._read(key.data, connection)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:  # the client has disconnected, or too many files are open
            log.warning("a connection could not be accepted: %s", error)
            return
        sock.setblocking(False)
        number = next(self._numbers)
        self._connections[number] = Connection(sock)
        self._selector.register(sock, selectors.EVENT_READ, number)

    def _read(self, number: int, connection: Connection) -> None:
        try:
            data = connection.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect(number)
            return
        try:
            for message in connection.decoder.feed(data):
                self._take(number, connection, message)
        except (msgspec.DecodeError, RecursionError) as error:
            log.warning("closed a connection that is not an API process: %s", error)
            self._disconnect(number)

    def _take(self, number: int, connection: Connection, message: ToEngine) -> None:
        if isinstance(message, Hello):
            if not hmac.compare_digest(message.secret.encode(), self._secret.encode()):
                raise msgspec.DecodeError("wrong secret")
            connection.is_welcome = True
            connection.decoder.max_bytes = MAX_FRAME_BYTES
            self.send(number, [Welcome(self._model, self._batching)])
            self._inbox.put((number, Connected()))
        elif connection.is_welcome:
            self._inbox.put((number, message))
            if isinstance(message, Submit | Cancel | CancelRequest | ListRequests | SetRuntimeOption):
                self._interrupt(number, message)
        else:
            raise msgspec.DecodeError("no secret")

    def _disconnect(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is not None:
            self._selector.unregister(connection.socket)
            connection.socket.close()
            if connection.is_welcome:
                self._inbox.put((number, Disconnected()))

    def _watch_writers(self) -> None:
        for number, connection in list(self._connections.items()):
            if connection.is_stuck:
                log.warning("disconnected an API process that does not read")
                self._disconnect(number)
            elif not connection.flush():
                self._selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, number)


def listen(address: str) -> Listener:
    """Listen on a Unix socket with the path `address` or, if `address` is empty or on Windows, on a free TCP port of
    the loopback interface. Returns the socket with its actual address.

    Raises OSError if that is impossible.
    """
    if sys.platform != "win32" and address:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(address)
    else:
        sock = socket.create_server(("127.0.0.1", 0))
        address = "{}:{}".format(*sock.getsockname())
    sock.listen()
    sock.setblocking(False)
    return Listener(sock, address)
