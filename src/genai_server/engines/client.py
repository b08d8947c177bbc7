"""One engine as an API process sees it: a connection that comes back, and the streams on it."""

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from genai_server.engines.board import Board, EngineStatus, read_board
from genai_server.engines.connection import connect
from genai_server.engines.retry import Retries
from genai_server.engines.stream import PromptProgress, TokenStream
from genai_server.errors import (
    EngineDied,
    GenerationFailed,
    InvalidField,
    ModelUnloaded,
    NoEngineReady,
    QueueFull,
    from_code,
)
from genai_server.generation import Batching, GenerationRequest, ModelInfo
from genai_server.messages.figures import Figures, Load
from genai_server.messages.frames import ToApi, ToEngine, encode_frame
from genai_server.messages.generation import (
    Accepted,
    Cancel,
    Failed,
    Finished,
    Progress,
    PromptLogprobs,
    Refused,
    Stop,
    Submit,
    Tokens,
)
from genai_server.messages.handshake import Hello, Welcome
from genai_server.messages.operator import (
    CacheReset,
    CancelRequest,
    EndProfile,
    GetRuntimeOptions,
    ListProfiles,
    ListRequests,
    OpenProfiles,
    Reply,
    RequestList,
    RequestState,
    ResetPrefixCache,
    SetRuntimeOption,
    StartProfile,
)
from genai_server.profile_plan import ProfilePlan, ProfileState

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.05
# States of an engine after which there is no next one.
_OVER = ("failed", "stopped", "unloading")


class EngineClient:
    """Attached to the engine of one device for as long as `run` runs; belongs to the event loop.

    `load` and `figures` are what the engine has told last; the figures are None until it has counted. It runs the model
    that has this serial on the board, the first one's without any.
    """

    def __init__(self, device: str, folder: Path, model_name: str = "", serial: int = 0) -> None:
        self.device = device
        self.model_name = model_name
        self._serial = serial
        self.model: ModelInfo | None = None
        self.batching = Batching()
        self.load = Load()
        self.figures: Figures | None = None
        self._folder = folder
        self._writer: asyncio.WriteTransport | None = None
        self._streams: dict[int, TokenStream] = {}
        self._retries = Retries()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._keys = count()

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
        return len(self._streams) + len(self._retries) + self.load.others

    def status(self) -> EngineStatus:
        """What the supervisor says of the engine; ready only once this process is attached."""
        return self._status_on(read_board(self._folder))

    async def submit(self, request: GenerationRequest) -> TokenStream:
        """Hand over a request; returns once the engine has taken it.

        Raises Unavailable with the engine's reason if it does not.
        """
        key = next(self._keys)
        stream = TokenStream(lambda: self._leave(key), lambda: self._send([Stop(key)]), request)
        self._send([Submit(key, request)])
        self._streams[key] = stream
        try:
            await stream.accepted()
        except BaseException:
            stream.close()
            raise
        return stream

    async def set_runtime_option(self, option: str, value: str, request_id: str | None) -> Reply:
        """Set a runtime option; see messages.operator.SetRuntimeOption. Raises NoEngineReady."""
        reply: Reply = await self._call(lambda call: SetRuntimeOption(call, option, value, request_id))
        return reply

    async def runtime_options(self) -> Reply:
        """The state of the runtime options. Raises NoEngineReady."""
        reply: Reply = await self._call(GetRuntimeOptions)
        return reply

    async def start_profile(self, plan: ProfilePlan) -> ProfileState:
        """Begin a profile session. Raises RequestNotFound, InvalidField, Unavailable and NoEngineReady."""
        (begun,) = _granted(await self._call(lambda call: StartProfile(call, plan)))
        return begun

    async def end_profile(self, id: str) -> None:
        """End a profile session. Raises ProfileNotFound and NoEngineReady."""
        _granted(await self._call(lambda call: EndProfile(call, id)))

    async def profiles(self) -> list[ProfileState]:
        """The open profile sessions. Raises NoEngineReady."""
        return _granted(await self._call(ListProfiles))

    async def reset_prefix_cache(self) -> int:
        """Forget the past of all sequences that have ended; returns how many slots had one. Raises NoEngineReady."""
        reset: CacheReset = await self._call(ResetPrefixCache)
        return reset.slots

    async def requests(self) -> list[RequestState]:
        """What runs and waits, of all API processes. Raises NoEngineReady."""
        found: RequestList = await self._call(ListRequests)
        return found.requests

    async def cancel_request(self, request_id: str) -> list[RequestState]:
        """End the requests of this name, of all API processes; returns them. Raises NoEngineReady."""
        found: RequestList = await self._call(lambda call: CancelRequest(call, request_id))
        return found.requests

    def require_room(self, num_requests: int, num_tokens: int = 0) -> None:
        """Raise QueueFull if the engine, for all that it has told, would not take so many requests now, or so many
        tokens of prompts, and InvalidField if it never would take so many requests.
        """
        capacity = self.load.capacity
        if capacity is not None and num_requests > capacity:
            raise InvalidField(
                f"a request may have {capacity} answers on device {self.device}, as many as may run and wait there "
                f"(GENAI_MAX_BATCH_SIZE, GENAI_MAX_QUEUE), given {num_requests}",
                param="n",
            )
        rooms = (
            (self.load.room, num_requests, "requests", "GENAI_MAX_QUEUE"),
            (self.load.room_tokens, num_tokens, "tokens of prompts", "GENAI_MAX_QUEUE_TOKENS"),
        )
        for room, number, kind, limit in rooms:
            if room is not None and number > room:
                raise QueueFull(
                    f"{room} more {kind} may wait for device {self.device} now ({limit}), given {number}",
                    retry_after=self.load.retry_after or None,
                )

    async def run(self) -> None:
        """Keep attached until cancelled."""
        try:
            await self._attach()
        finally:
            self._retries.fail(self._death, all=True)  # `_detach` has put into it what ran

    # the connection

    async def _attach(self) -> None:
        while True:
            try:
                board = read_board(self._folder)
                status = self._status_on(board)
                self._retries.fail(self._death, all=status.state in _OVER)
                if status.address:
                    await self._attend(status.address, board.secret)
            except (OSError, msgspec.DecodeError) as error:
                log.debug("connection to the engine of device %s: %s", self.device, error)
            except Exception:  # whatever it was, the next try may succeed, and without one nobody is served
                log.exception("connection to the engine of device %s", self.device)
            finally:
                self._detach()
            await asyncio.sleep(RETRY_SECONDS)

    @property
    def _death(self) -> GenerationFailed:
        """Why requests are lost: the model was unloaded, or the engine died."""
        board = read_board(self._folder)
        states = [status.state for status in board.engines if self._is_mine(status)]
        # A board without a secret is none: the supervisor has left.
        if board.secret and (not states or "unloading" in states):
            return ModelUnloaded(f"the model {self.model_name} was unloaded")
        return EngineDied(f"the engine of device {self.device} died; the request was lost")

    async def _attend(self, address: str, secret: str) -> None:
        """Serve one connection until it ends."""
        self._writer, connection = await connect(address, self._receive)
        self._send([Hello(secret)])
        await connection.ended

    def _detach(self) -> None:
        """The engine has gone: tell everybody who waits for it."""
        if self._writer is not None:
            self._writer.close()
        self._writer, self.model, self.load, self.figures = None, None, Load(), None
        streams, self._streams = self._streams, {}
        calls, self._calls = self._calls, {}
        if streams:
            death = self._death
        for key, stream in streams.items():
            if isinstance(death, ModelUnloaded) or not self._retries.keep(key, stream):
                stream.fail(death)
        for call in calls.values():
            if not call.done():
                call.set_exception(NoEngineReady(f"the engine of device {self.device} died"))

    def _receive(self, message: ToApi) -> None:
        match message:
            case Welcome():
                self.model, self.batching = message.model, message.batching
                for key, retry in self._retries.take().items():
                    self._streams[key] = retry.stream
                    self._send([Submit(key, retry.request)])
            case Load():
                self.load = message
            case Figures():
                self.figures = message
            case Reply() | OpenProfiles() | CacheReset() | RequestList():
                call = self._calls.pop(message.call, None)
                if call is not None and not call.done():
                    call.set_result(message)
            case Accepted() | Refused() | Tokens() | PromptLogprobs() | Progress() | Finished() | Failed():
                stream = self._streams.get(message.key)
                if stream is not None:
                    self._advance(stream, message)

    def _advance(
        self,
        stream: TokenStream,
        message: Accepted | Refused | Tokens | PromptLogprobs | Progress | Finished | Failed,
    ) -> None:
        match message:
            case Accepted():
                stream.accept()
                return
            case Tokens():
                stream.deliver(message.tokens, message.logprobs)
                return
            case PromptLogprobs():
                stream.deliver_prompt(message.logprobs)
                return
            case Progress():
                stream.deliver_progress(PromptProgress(message.num_read, message.num_cached))
                return
            case Finished():
                stream.finish(message.reason, message.phases, message.num_cached, message.num_profiled)
            case Refused():
                stream.fail(from_code(message.code, message.message, message.param, message.retry_after))
            case Failed():
                stream.fail(from_code(message.code, message.message, message.param))
        del self._streams[message.key]

    def _leave(self, key: int) -> None:
        """A reader has left: what is still running for it shall end."""
        self._retries.forget(key)
        if self._streams.pop(key, None) is not None and self._writer is not None:
            self._send([Cancel(key)])

    async def _call(self, message: Callable[[int], ToEngine]) -> Any:
        call = next(self._keys)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send([message(call)])
        self._calls[call] = future
        return await future

    def _send(self, messages: list[ToEngine]) -> None:
        if self._writer is None:
            raise NoEngineReady(f"device {self.device} cannot take requests now: its engine is not running")
        self._writer.write(encode_frame(messages))

    def _status_on(self, board: Board) -> EngineStatus:
        for status in board.engines:
            if self._is_mine(status):
                if status.state == "ready" and not self.is_connected:
                    return msgspec.structs.replace(status, state="starting")
                return status
        return EngineStatus(self.device, "stopped")

    def _is_mine(self, status: EngineStatus) -> bool:
        return status.device == self.device and status.serial == self._serial


def _granted(reply: OpenProfiles) -> list[ProfileState]:
    """The sessions that an engine has answered with. Raises what it refused with."""
    if reply.refusal is not None:
        raise from_code(reply.refusal.code, reply.refusal.message, reply.refusal.param)
    return reply.sessions
