"""The connection of an API process (which serves HTTP) to the supervisor, the process that starts engines
(`SupervisorClient`). Over it, the API process receives the server's status, sends commands such as to load a model, and
uses the worker pool and the tool servers.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import count

import msgspec

from genai_server.errors import NoEngineReady
from genai_server.messages.engine_protocol import Hello
from genai_server.messages.frames import connect, encode_frame
from genai_server.messages.server_status import NO_SERVER, ServerStatus
from genai_server.messages.supervisor_protocol import (
    Ask,
    Command,
    CommandReply,
    EndRequest,
    FromSupervisor,
    MatchingRequests,
    SupervisorAddress,
    ToolList,
    ToolOutput,
    ToolServerFailed,
    ToSupervisor,
    supervisor_client_decoder,
)
from genai_server.tool_servers.client import ToolServerClient
from genai_server.workers.client import WorkerClient

log = logging.getLogger(__name__)
# Seconds that a command waits for its reply.
COMMAND_TIMEOUT = 10.0
# Seconds between two attempts to connect.
_RETRY_SECONDS = 0.1


# Finds the supervisor, or starts it; called in a thread for each attempt to connect. Raises OSError and DecodeError.
FindSupervisor = Callable[[], SupervisorAddress]


class SupervisorClient:
    """An API process's connection to the supervisor (the process that starts engines), with the last status of models
    and engines that the supervisor has reported. It stays connected, from construction to `close`, and connects again
    when the connection ends.

    `status` is replaced whenever the supervisor reports a change, and may be read by any thread; everything else may
    only be used by the event loop's thread.
    """

    def __init__(self, find: FindSupervisor) -> None:
        self.status = NO_SERVER
        self.workers = WorkerClient(self._send)
        self.tools = ToolServerClient(self._send)
        self._find = find
        # None while not connected.
        self._transport: asyncio.WriteTransport | None = None
        # What is sent once there is a connection; None unless one is being made.
        self._unsent: list[ToSupervisor] | None = []
        self._replies: dict[int, asyncio.Future[None]] = {}
        self._calls = count()
        # Set with the first status.
        self._known = asyncio.Event()
        # Replaced, and set, at each change of the status.
        self._change = asyncio.Event()
        self._following = asyncio.create_task(self._follow())

    def close(self) -> None:
        """Disconnect from the supervisor, which then ends the tasks and tools that run for this process. Calls that
        still wait for an answer fail.
        """
        self._following.cancel()
        self._lose()

    @property
    def is_connected(self) -> bool:
        """Whether this process is connected to the supervisor now."""
        return self._transport is not None and not self._transport.is_closing()

    async def ready(self) -> None:
        """Wait until the supervisor's first status has arrived, or the first attempt to connect to the supervisor has
        failed.
        """
        await self._known.wait()

    async def changed(self) -> None:
        """Wait until the supervisor next reports a status of the server; `status` then has it."""
        await self._change.wait()

    async def command(self, command: Command) -> None:
        """Send a command, such as to load a model, to the supervisor and wait until it was carried out, at most
        COMMAND_TIMEOUT seconds. `status` then contains the effect.

        Raises the error in the supervisor's reply, and NoEngineReady if there is no reply in time or no connection.
        """
        call = next(self._calls)
        reply = self._replies[call] = asyncio.get_running_loop().create_future()
        try:
            if not self._send(Ask(call, command)):
                raise NoEngineReady("the supervisor cannot be reached")
            async with asyncio.timeout(COMMAND_TIMEOUT):
                await reply
        except TimeoutError:
            raise NoEngineReady(f"the supervisor has not answered for {COMMAND_TIMEOUT:.0f} s") from None
        finally:
            self._replies.pop(call, None)

    # the connection

    def _send(self, message: ToSupervisor) -> bool:
        """Send a message to the supervisor and return True. While the connection is being made, the message is sent as
        soon as the connection exists. Returns False, and sends nothing, if there is no connection.
        """
        if self._transport is not None and self.is_connected:
            self._transport.write(encode_frame([message]))
            return True
        if self._unsent is not None:
            self._unsent.append(message)
            return True
        return False

    async def _follow(self) -> None:
        while True:
            try:
                await self._serve_connection()
            except Exception as error:  # whatever it was, the next attempt may succeed
                is_usual = isinstance(error, OSError | msgspec.DecodeError)
                log.log(logging.DEBUG if is_usual else logging.ERROR, "connection to the supervisor", exc_info=error)
                self._lose(f": {error}")
                self._report(NO_SERVER)
            else:
                self._lose()
                if not self._known.is_set():  # the supervisor does not take this process for one of its own
                    self._report(NO_SERVER)
            await asyncio.sleep(_RETRY_SECONDS)
            self._unsent = []

    async def _serve_connection(self) -> None:
        """Find the supervisor, connect to it, and receive its messages until the connection ends. Raises OSError if the
        supervisor cannot be reached, and msgspec.DecodeError for an invalid address file or message.
        """
        address = await asyncio.to_thread(self._find)
        transport, connection = await connect(address.address, supervisor_client_decoder(), self._receive)
        try:
            transport.write(encode_frame([Hello(address.secret)]))
            unsent, self._unsent = self._unsent or [], None
            for message in unsent:
                transport.write(encode_frame([message]))
            self._transport = transport
            await connection.ended
        finally:
            transport.close()

    def _lose(self, reason: str = "") -> None:
        """Handle the end of the connection: all calls that wait for the supervisor fail. `reason` is put at the end of
        the error message, such as ": connection refused".
        """
        self._transport, self._unsent = None, None
        self.workers.lose(reason)
        self.tools.lose(reason)
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            if not reply.done():
                reply.set_exception(NoEngineReady(f"the supervisor cannot be reached{reason}"))

    def _receive(self, message: FromSupervisor) -> None:
        if isinstance(message, ServerStatus):
            self._report(message)
        elif isinstance(message, CommandReply):
            reply = self._replies.pop(message.call, None)
            if reply is not None and not reply.done():
                if message.error is None:
                    reply.set_result(None)
                else:
                    reply.set_exception(message.error.to_error())
        elif isinstance(message, ToolList | ToolOutput | ToolServerFailed | MatchingRequests | EndRequest):
            self.tools.receive(message)
        else:
            self.workers.receive(message)

    def _report(self, status: ServerStatus) -> None:
        self.status = status
        self._known.set()
        change, self._change = self._change, asyncio.Event()
        change.set()
