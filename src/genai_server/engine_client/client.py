"""The connections of an API process (which serves HTTP) to the engines of one model, the processes that run it on each
device (`EngineClient`); admin calls to an engine (`EngineAdmin`); and the choice of an engine for a request (`Router`).

The requests on a connection, and the streams of tokens that answer them, are in in_flight.py.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import msgspec

from genai_server.engine_client.in_flight import InFlight, error_of_loss
from genai_server.errors import (
    AsIs,
    GenerationFailed,
    InvalidField,
    NoEngineReady,
)
from genai_server.messages.admin import AdminReply, Call, CallFailed, R
from genai_server.messages.engine_protocol import (
    CachedPrefixes,
    Capacity,
    Figures,
    Hello,
    Load,
    ToApi,
    ToEngine,
    Tokens,
    Welcome,
    api_decoder,
)
from genai_server.messages.frames import connect, encode_frame
from genai_server.messages.generation_request import Batching, ModelInfo
from genai_server.messages.prefix_cache import BLOCK_TOKENS
from genai_server.messages.server_status import EngineState, EngineStatus, ServerStatus


class EngineAdmin:
    """Sends admin calls (messages/admin.py) to one engine, and passes each reply to the coroutine that waits for it.

    Each EngineClient has an EngineAdmin. Only the event loop's thread may use it.
    """

    def __init__(self, send: Callable[[Call[Any]], None]) -> None:
        # Raises NoEngineReady.
        self._send = send
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()

    async def ask(self, make_call: Callable[[int], Call[R]]) -> R:
        """Send an admin call to the engine, wait for the reply and return it.

        `make_call` creates the call from the number by which its reply is recognized. Raises the error in the engine's
        reply if the call failed, and NoEngineReady if the engine is not connected or its connection ends before it has
        replied.
        """
        number = next(self._numbers)
        waiting: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._send(make_call(number))
        self._calls[number] = waiting
        return await waiting

    def receive(self, reply: AdminReply) -> None:
        """Pass the engine's reply to the coroutine that waits for it in `ask`. The reply is dropped if no coroutine
        waits.
        """
        waiting = self._calls.pop(reply.call, None)
        if waiting is None or waiting.done():
            return
        if isinstance(reply, CallFailed):
            waiting.set_exception(reply.error.to_error())
        else:
            waiting.set_result(reply)

    def lose(self, reason: str) -> None:
        """End all calls that wait for a reply with NoEngineReady, whose message is `reason`, because the connection to
        the engine has ended.
        """
        calls, self._calls = self._calls, {}
        for waiting in calls.values():
            if not waiting.done():
                waiting.set_exception(NoEngineReady(reason))


log = logging.getLogger(__name__)
RETRY_SECONDS = 0.05
# Gives the newest status of the server, as the supervisor has reported it.
ReadStatus = Callable[[], ServerStatus]
# A further request on an engine counts as much as this number of prompt tokens that are not in its prefix cache.
TOKENS_PER_REQUEST = 128
# How many requests an engine may have more than another one that has less of a prompt cached, at most. A beginning that
# many prompts share, such as an agent's instructions, is then read on that engine, too, and afterwards found on both.
MAX_MORE_REQUESTS = 3
# States of an engine that is not restarted.
_OVER = (EngineState.FAILED, EngineState.STOPPED, EngineState.UNLOADING)


class EngineClient:
    """An API process's connection to the engine of one device, with the engine's last reports about its load and model.

    A Router creates one for each device. The coroutine `run` connects, and connects again whenever the connection ends.
    Only the event loop's thread may use the object.
    """

    def __init__(self, device: str, read_status: ReadStatus, model_name: str = "", serial: int = 0) -> None:
        self.device = device
        self.model_name = model_name
        # The model's serial in the server's status.
        self._serial = serial
        # None while not connected.
        self.model: ModelInfo | None = None
        self.batching = Batching()
        # The engine's last report.
        self.load = Load()
        # Digests of the blocks in the engine's prefix cache (messages/prefix_cache.py); as many as its memory holds.
        # Empty if the model has no other engine, because nothing depends on it then.
        self.cached_blocks: set[bytes] = set()
        # None until the engine has reported any.
        self.figures: Figures | None = None
        self.admin = EngineAdmin(self._send)
        self.in_flight = InFlight(self._send)
        self._read_status = read_status
        self._writer: asyncio.WriteTransport | None = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection on which requests can be sent to the engine now."""
        return self._writer is not None and self.model is not None

    @property
    def is_ready(self) -> bool:
        """Whether the engine is connected and has not been terminated by an operator. A ready engine may still
        be full.
        """
        return self.is_connected and not self.load.terminated

    @property
    def work(self) -> int:
        """The number of requests of normal priority in the engine, by which the Router compares engines.

        It is the number of this process's current requests, plus the number of other processes' requests in the
        engine's last report.
        """
        return len(self.in_flight) - self.in_flight.num_low_priority + self.load.others

    @property
    def low_priority_work(self) -> int:
        """The number of low-priority requests in the engine: the number in the engine's last report, or the number of
        this process's own requests if that is larger.
        """
        return max(self.in_flight.num_low_priority, self.load.low_priority_running + self.load.low_priority_waiting)

    def status(self) -> EngineStatus:
        """Return the engine's status as the supervisor (the process that starts engines) reports it, but with the state
        STARTING instead of READY while this process is not connected to the engine.
        """
        return self._status_on(self._read_status())

    def require_capacity(
        self, num_answers: int, lengths: Sequence[int] = (), *, param: str, tenant: str = "", low_priority: bool = False
    ) -> None:
        """Check whether the engine would accept a request for `num_answers` answers. Raises QueueFull if it would not
        accept them now, and InvalidField if it could not accept them even when idle.

        `lengths` has the number of prompt tokens of each answer; it is empty if these are unknown. `param` is the
        request's field that asks for several answers, which InvalidField names. `tenant` is the API key whose share of
        the queue counts. The check uses the engine's last report; the engine itself checks again when the requests
        arrive, with the same errors. For a request with `low_priority`, only the engine checks whether the queue is
        full.
        """
        load, capacity = self.load, self.load.capacity
        if capacity is None:
            return
        _require_possible(capacity, self.device, num_answers, lengths, param)
        if low_priority:
            return
        retry_after = load.retry_after or None
        if num_answers > capacity.num_free(load.present, tenant):
            more = f", given {num_answers} more"
            raise capacity.request_limit_error(f"device {self.device}", load.present, tenant, retry_after, more)
        num_tokens, free_tokens = sum(lengths), capacity.free_tokens(load.present, load.waiting_tokens, tenant)
        if free_tokens is not None and num_tokens > free_tokens:
            total = sum(load.waiting_tokens.values()) + num_tokens
            raise capacity.token_limit_error(f"device {self.device}", total, num_tokens, retry_after)

    async def run(self) -> None:
        """Stay connected to the engine until the coroutine is cancelled. When it is, requests that wait for a restarted
        engine fail.
        """
        try:
            await self._attach()
        finally:
            self.in_flight.give_up(self._loss(self._read_status()), all=True)

    # the connection

    async def _attach(self) -> None:
        while True:
            try:
                server_status = self._read_status()
                status = self._status_on(server_status)
                self.in_flight.give_up(self._loss(server_status), all=status.state in _OVER)
                if status.address:
                    await self._serve_connection(status.address, server_status.secret)
            except (OSError, msgspec.DecodeError, NoEngineReady) as error:
                log.debug("connection to the engine of device %s: %s", self.device, error)
            except Exception:  # the next attempt may succeed
                log.exception("connection to the engine of device %s", self.device)
            await asyncio.sleep(RETRY_SECONDS)

    async def _serve_connection(self, address: str, secret: str) -> None:
        """Connect to the engine at `address` (a socket's path, or host:port), and exchange messages with it until the
        connection ends. `secret` shows the engine that this process belongs to the server. Raises OSError if the
        connection cannot be made or breaks.
        """
        self._writer, connection = await connect(address, api_decoder(), self._receive)
        try:
            self._send(Hello(secret))
            await connection.ended
        finally:
            self._writer.close()
            self._forget()

    def _forget(self) -> None:
        """Reset the state after the connection to the engine has ended. Admin calls fail, and so do requests of which a
        token has arrived; other requests wait for the restarted engine.
        """
        self._writer, self.model, self.load, self.figures = None, None, Load(), None
        self.cached_blocks = set()
        self.admin.lose(f"the engine of device {self.device} died")
        self.in_flight.lose(self._loss(self._read_status()))

    def _receive(self, message: ToApi) -> None:
        if type(message) is Tokens:  # by far the most frequent
            self.in_flight.receive(message)
            return
        match message:
            case Welcome():
                self.model, self.batching = message.model, message.batching
                self.in_flight.resume()
            case Load():
                self.load = message
            case CachedPrefixes(added, removed):
                self.cached_blocks.update(added)
                self.cached_blocks.difference_update(removed)
            case Figures():
                self.figures = message
            case _ if isinstance(message, AdminReply):
                self.admin.receive(message)
            case _:
                self.in_flight.receive(message)

    def _send(self, *messages: ToEngine | Call[Any]) -> None:
        """Send messages to the engine without waiting. Raises NoEngineReady, and sends none of them, if the engine is
        not connected.
        """
        # Between the loss of a connection and `_forget` it is closing; uvloop then raises an error of its own.
        if self._writer is None or self._writer.is_closing():
            raise NoEngineReady(f"device {self.device} cannot take requests now: its engine is not running")
        self._writer.write(b"".join(encode_frame([message]) for message in messages))

    # the engine's state as the supervisor reports it

    def _status_on(self, server_status: ServerStatus) -> EngineStatus:
        for status in server_status.engines:
            if self._is_mine(status):
                if status.state == EngineState.READY and not self.is_connected:
                    return msgspec.structs.replace(status, state=EngineState.STARTING)
                return status
        return EngineStatus(self.device, EngineState.STOPPED)

    def _loss(self, server_status: ServerStatus) -> GenerationFailed:
        mine = [status for status in server_status.engines if self._is_mine(status)]
        # Without a secret the supervisor has ended.
        return error_of_loss(self.device, self.model_name, mine, is_supervised=bool(server_status.secret))

    def _is_mine(self, status: EngineStatus) -> bool:
        return status.device == self.device and status.serial == self._serial


class Router:
    """The connections of an API process to all engines of one model, and the choice of the engine for each request.

    `engines` has an EngineClient for each device, in the order of the settings. Each model that the process serves has
    a Router. Only the event loop's thread may use it.
    """

    def __init__(self, devices: Sequence[str], read_status: ReadStatus, model_name: str = "", serial: int = 0) -> None:
        self.engines = {device: EngineClient(device, read_status, model_name, serial) for device in devices}

    async def run(self) -> None:
        """Stay connected to all engines of the model until the coroutine is cancelled."""
        await asyncio.gather(*(engine.run() for engine in self.engines.values()))

    @property
    def is_ready(self) -> bool:
        """Whether at least one of the model's engines accepts requests."""
        return any(engine.is_ready for engine in self.engines.values())

    def select(self, device: str | None) -> list[EngineClient]:
        """Return the connection to the engine of `device` as a list, or the connections to all engines of the model if
        `device` is None. Raises InvalidField for a device that is not configured.
        """
        if device is None:
            return list(self.engines.values())
        if device not in self.engines:
            devices = ", ".join(self.engines)
            raise InvalidField("device", f"must be one of: {devices}", given=device)
        return [self.engines[device]]

    def pick(
        self, device: str | None, *, prefix: Iterable[bytes] = (), tenant: str = "", low_priority: bool = False
    ) -> tuple[EngineClient, ModelInfo]:
        """Choose the engine for a request, and return it with the description of its model: the engine of `device` if
        this is given, otherwise the one with the least work.

        Tokens of the prompt count as additional work for an engine if another engine has them in its prefix cache and
        this engine does not (TOKENS_PER_REQUEST, MAX_MORE_REQUESTS). `prefix` are the digests of the prompt's blocks
        (messages/prefix_cache.py), which are only read if there are several engines. `tenant` is the API key of the
        request.

        Low-priority requests in an engine count as work only for a request that has low priority too, and decide
        between engines that are otherwise equal. An engine whose last report says that it is full or terminated is
        chosen only if there is no other; it may have changed since the report. Raises InvalidField for an unknown
        device, and NoEngineReady if no engine runs.
        """
        engines = self.select(device)
        running = [(engine, engine.model) for engine in engines if engine.is_connected and engine.model is not None]
        if len(running) == 1:
            return running[0]
        if running:
            cached = _num_cached([engine for engine, _ in running], prefix)
            longest = max(cached.values())
            return min(running, key=lambda pair: _order(pair[0], longest - cached[pair[0]], tenant, low_priority))
        states = "; ".join(f"{engine.device} is {describe(engine.status())}" for engine in engines)
        raise NoEngineReady(f"no engine can take work: {states}")


def _num_cached(engines: Sequence[EngineClient], prefix: Iterable[bytes]) -> dict[EngineClient, int]:
    """Return, for each engine, how many tokens at the beginning of a prompt are in the engine's prefix cache, counted
    in full blocks. `prefix` has the digests of the prompt's blocks, in order.
    """
    cached = dict.fromkeys(engines, 0)
    holders = [engine for engine in engines if engine.cached_blocks]
    if holders:
        for block in prefix:
            holders = [engine for engine in holders if block in engine.cached_blocks]
            if not holders:
                break
            for engine in holders:
                cached[engine] += BLOCK_TOKENS
    return cached


def _order(engine: EngineClient, num_missing: int, tenant: str, low_priority: bool) -> tuple[float, ...]:
    """Return the sort key of an engine for one request; the engine with the smallest key is chosen.

    `num_missing` is the number of the prompt's tokens that another engine has in its prefix cache and this engine does
    not. `tenant` is the API key of the request, and `low_priority` says whether the request has low priority. Of idle
    engines, the one with fewer cached blocks gets a new conversation, so that the caches of all engines are used.
    """
    background = engine.low_priority_work
    work = engine.work + background if low_priority else engine.work
    is_full = engine.load.is_full(tenant) and not low_priority
    work_with_missing = work + min(num_missing / TOKENS_PER_REQUEST, MAX_MORE_REQUESTS)
    in_cache = len(engine.cached_blocks)
    return engine.load.terminated, is_full, work_with_missing, background, num_missing, in_cache


def describe(status: EngineStatus) -> str:
    """Return the state of an engine as text for messages, followed by its last error in parentheses if there is one."""
    return f"{status.state} ({status.error})" if status.error else status.state


def _require_possible(capacity: Capacity, device: str, num_answers: int, lengths: Sequence[int], param: str) -> None:
    """Raise InvalidField, which names the request's field `param`, if an engine with this capacity could not accept
    `num_answers` answers even when idle. `lengths` has the prompts' lengths in tokens, and `device` the device's name
    for the message.
    """
    if num_answers > capacity.requests:
        raise InvalidField(
            param,
            f"asks for more answers than may run and wait on device {device},",
            limit=capacity.requests,
            limited_by=f"{capacity.limited_by}, GENAI_MAX_QUEUE",
            given=num_answers,
        )
    waiting = sum(lengths[capacity.running :])
    if capacity.waiting_tokens is not None and waiting > capacity.waiting_tokens:
        raise InvalidField(
            param,
            f"may make answers on device {device} of which those that cannot run at once, all beyond "
            f"{capacity.running}, wait with prompts of at most {capacity.waiting_tokens} tokens together "
            "(GENAI_MAX_QUEUE_TOKENS)",
            given=AsIs(f"{num_answers} answers, {waiting} tokens"),
        )
