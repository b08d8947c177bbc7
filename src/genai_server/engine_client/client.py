"""One engine as an API process sees it: what it has told of itself, and a connection to it that comes back."""

import asyncio
import logging

import msgspec

from genai_server.engine_client.admin import EngineAdmin
from genai_server.engine_client.connection import connect
from genai_server.engine_client.in_flight import InFlight
from genai_server.errors import EngineDied, EngineHung, GenerationFailed, ModelUnloaded, NoEngineReady
from genai_server.generation import Batching, ModelInfo
from genai_server.messages.admin import AdapterReply, CacheReset, OpenProfiles, Reply, RequestList
from genai_server.messages.figures import Figures, Load
from genai_server.messages.frames import ToApi, ToEngine, encode_frame
from genai_server.messages.handshake import Hello, Welcome
from genai_server.messages.status_file import EngineState, EngineStatus, ServerStatus, StatusFileReader

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.05
# States of an engine after which there is no next one.
_OVER = (EngineState.FAILED, EngineState.STOPPED, EngineState.UNLOADING)


class EngineClient:
    """Attached to the engine of one device for as long as `run` runs; belongs to the event loop.

    `load` and `figures` are what the engine has told last; the figures are None until it has counted. `admin` makes the
    admin calls. `serial` is the model's in the status file.
    """

    def __init__(self, device: str, status_file: StatusFileReader, model_name: str = "", serial: int = 0) -> None:
        self.device = device
        self.model_name = model_name
        self._serial = serial
        self.model: ModelInfo | None = None
        self.batching = Batching()
        self.load = Load()
        self.figures: Figures | None = None
        self.admin = EngineAdmin(self._send)
        self.in_flight = InFlight(self._send)
        self._status_file = status_file
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
        return len(self.in_flight) + self.load.others

    def status(self) -> EngineStatus:
        """What the supervisor says of the engine; ready only once this process is attached."""
        return self._status_on(self._status_file.read())

    async def run(self) -> None:
        """Keep attached until cancelled."""
        try:
            await self._attach()
        finally:
            self.in_flight.give_up(self._death(self._status_file.read()), all=True)

    # the connection

    async def _attach(self) -> None:
        while True:
            try:
                server_status = self._status_file.read()
                status = self._status_on(server_status)
                self.in_flight.give_up(self._death(server_status), all=status.state in _OVER)
                if status.address:
                    await self._attend(status.address, server_status.secret)
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
        self.admin.lose(f"the engine of device {self.device} died")
        self.in_flight.lose(self._death(self._status_file.read()))

    def _receive(self, message: ToApi) -> None:
        match message:
            case Welcome():
                self.model, self.batching = message.model, message.batching
                self.in_flight.resume()
            case Load():
                self.load = message
            case Figures():
                self.figures = message
            case Reply() | OpenProfiles() | CacheReset() | RequestList() | AdapterReply():
                self.admin.receive(message)
            case _:
                self.in_flight.receive(message)

    def _send(self, message: ToEngine) -> None:
        if self._writer is None:
            raise NoEngineReady(f"device {self.device} cannot take requests now: its engine is not running")
        self._writer.write(encode_frame([message]))

    # the status file

    def _status_on(self, server_status: ServerStatus) -> EngineStatus:
        for status in server_status.engines:
            if self._is_mine(status):
                if status.state == EngineState.READY and not self.is_connected:
                    return msgspec.structs.replace(status, state=EngineState.STARTING)
                return status
        return EngineStatus(self.device, EngineState.STOPPED)

    def _death(self, server_status: ServerStatus) -> GenerationFailed:
        """Why requests are lost: the model was unloaded, or the engine hung or died."""
        mine = [status for status in server_status.engines if self._is_mine(status)]
        # Without a secret the supervisor has left.
        if server_status.secret and (not mine or any(status.state == EngineState.UNLOADING for status in mine)):
            return ModelUnloaded(f"the model {self.model_name} was unloaded")
        if any(status.hung for status in mine):
            return EngineHung(
                f"the engine of device {self.device} hung for longer than GENAI_STEP_TIMEOUT allows and was killed; "
                "the request was lost"
            )
        return EngineDied(f"the engine of device {self.device} died; the request was lost")

    def _is_mine(self, status: EngineStatus) -> bool:
        return status.device == self.device and status.serial == self._serial
