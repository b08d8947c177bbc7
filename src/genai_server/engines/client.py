"""One engine as an API process sees it: what it has told of itself, and a connection to it that comes back."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from genai_server.engines.board import Board, EngineStatus, read_board
from genai_server.engines.connection import connect
from genai_server.engines.in_flight import InFlight
from genai_server.engines.operator import Operator
from genai_server.engines.room import require_room
from genai_server.engines.stream import TokenStream
from genai_server.errors import EngineDied, EngineHung, GenerationFailed, ModelUnloaded, NoEngineReady
from genai_server.generation import Batching, GenerationRequest, ModelInfo
from genai_server.messages.figures import Figures, Load
from genai_server.messages.frames import ToApi, ToEngine, encode_frame
from genai_server.messages.handshake import Hello, Welcome
from genai_server.messages.operator import AdapterReply, CacheReset, OpenProfiles, Reply, RequestList

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.05
# States of an engine after which there is no next one.
_OVER = ("failed", "stopped", "unloading")


class EngineClient:
    """Attached to the engine of one device for as long as `run` runs; belongs to the event loop.

    `load` and `figures` are what the engine has told last; the figures are None until it has counted. `operator` asks
    it what operators want. It runs the model that has this serial on the board, the first one's without any.
    """

    def __init__(self, device: str, folder: Path, model_name: str = "", serial: int = 0) -> None:
        self.device = device
        self.model_name = model_name
        self._serial = serial
        self.model: ModelInfo | None = None
        self.batching = Batching()
        self.load = Load()
        self.figures: Figures | None = None
        self.operator = Operator(self._send)
        self._in_flight = InFlight(self._send)
        self._folder = folder
        self._writer: asyncio.WriteTransport | None = None

    @property
    def is_connected(self) -> bool:
        """Whether requests can be sent."""
        return self._writer is not None and self.model is not None

    @property
    def is_ready(self) -> bool:
        """Whether requests would be taken."""
        return self.is_connected and not self.load.terminated

    @property
    def work(self) -> int:
        """Requests in the engine: this process's now, and the others' when the engine last told."""
        return len(self._in_flight) + self.load.others

    def status(self) -> EngineStatus:
        """What the supervisor says of the engine; ready only once this process is attached."""
        return self._status_on(read_board(self._folder))

    async def submit(self, request: GenerationRequest) -> TokenStream:
        """Hand over a request; returns once the engine has taken it.

        Raises Unavailable with the engine's reason if it does not.
        """
        return await self._in_flight.submit(request)

    def require_room(self, num_answers: int, lengths: Sequence[int] = (), *, param: str = "n") -> None:
        """See that the device has room for so many answers; see engines/room.py. Raises QueueFull and InvalidField."""
        require_room(self.load, self.device, num_answers, lengths, param=param)

    async def run(self) -> None:
        """Keep attached until cancelled."""
        try:
            await self._attach()
        finally:
            self._in_flight.give_up(self._death(read_board(self._folder)), all=True)

    # the connection

    async def _attach(self) -> None:
        while True:
            try:
                board = read_board(self._folder)
                status = self._status_on(board)
                self._in_flight.give_up(self._death(board), all=status.state in _OVER)
                if status.address:
                    await self._attend(status.address, board.secret)
            except (OSError, msgspec.DecodeError) as error:
                log.debug("connection to the engine of device %s: %s", self.device, error)
            except Exception:  # whatever it was, the next try may succeed, and without one nobody is served
                log.exception("connection to the engine of device %s", self.device)
            await asyncio.sleep(RETRY_SECONDS)

    async def _attend(self, address: str, secret: str) -> None:
        """Serve one connection until it ends."""
        self._writer, connection = await connect(address, self._receive)
        try:
            self._send(Hello(secret))
            await connection.ended
        finally:
            self._writer.close()
            self._forget()

    def _forget(self) -> None:
        """The engine has gone: tell everybody who waits for it."""
        self._writer, self.model, self.load, self.figures = None, None, Load(), None
        self.operator.lose(f"the engine of device {self.device} died")
        self._in_flight.lose(self._death(read_board(self._folder)))

    def _receive(self, message: ToApi) -> None:
        match message:
            case Welcome():
                self.model, self.batching = message.model, message.batching
                self._in_flight.resume()
            case Load():
                self.load = message
            case Figures():
                self.figures = message
            case Reply() | OpenProfiles() | CacheReset() | RequestList() | AdapterReply():
                self.operator.receive(message)
            case _:
                self._in_flight.receive(message)

    def _send(self, message: ToEngine) -> None:
        if self._writer is None:
            raise NoEngineReady(f"device {self.device} cannot take requests now: its engine is not running")
        self._writer.write(encode_frame([message]))

    # the board

    def _status_on(self, board: Board) -> EngineStatus:
        for status in board.engines:
            if self._is_mine(status):
                if status.state == "ready" and not self.is_connected:
                    return msgspec.structs.replace(status, state="starting")
                return status
        return EngineStatus(self.device, "stopped")

    def _death(self, board: Board) -> GenerationFailed:
        """Why requests are lost: the model was unloaded, or the engine hung or died."""
        mine = [status for status in board.engines if self._is_mine(status)]
        # A board without a secret is none: the supervisor has left.
        if board.secret and (not mine or any(status.state == "unloading" for status in mine)):
            return ModelUnloaded(f"the model {self.model_name} was unloaded")
        if any(status.hung for status in mine):
            return EngineHung(
                f"the engine of device {self.device} hung for longer than GENAI_STEP_TIMEOUT allows and was killed; "
                "the request was lost"
            )
        return EngineDied(f"the engine of device {self.device} died; the request was lost")

    def _is_mine(self, status: EngineStatus) -> bool:
        return status.device == self.device and status.serial == self._serial
