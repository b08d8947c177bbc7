"""The supervisor's side of its connections to the API processes: it publishes the server's status, and receives
commands, tasks for the worker pool, and calls of tools. The messages are in messages/supervisor_protocol.py.

A thread with an event loop serves the connections. The worker pool and the tool servers run on the same event loop.
"""

import asyncio
import hmac
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import cast

import msgspec

from genai_server.config.tool_servers import ToolServer
from genai_server.errors import ConfigurationError, GenaiServerError, in_one_line
from genai_server.messages.engine_protocol import Hello
from genai_server.messages.frames import ErrorInfo, encode_frame
from genai_server.messages.server_status import NO_SERVER, ServerStatus
from genai_server.messages.supervisor_protocol import (
    MAX_TASK_FRAME_BYTES,
    Ask,
    Command,
    CommandReply,
    FindRequests,
    FromSupervisor,
    HoldRequest,
    ListTools,
    ReleaseRequest,
    RunTool,
    StopTool,
    SupervisorAddress,
    ToSupervisor,
    supervisor_decoder,
    write_address,
)
from genai_server.tool_servers.servers import HeldRequests, ToolServers, ToolSession
from genai_server.workers.pool import PoolSession, WorkerPool

log = logging.getLogger(__name__)
# Maximum bytes before the other side has shown the secret.
_MAX_UNAUTHENTICATED_BYTES = 1024
# An API process with this many unread bytes does not read any more, and is disconnected.
_MAX_BACKLOG_BYTES = 32 * 1024 * 1024
# Maximum seconds that a change of the status waits until it is on its way to all API processes.
_PUBLISH_TIMEOUT = 1.0


class SupervisorServer:
    """Listens on a socket for API processes and serves them, from construction to `close`. The supervisor has one.

    API processes find the socket's address in a file of `folder`, and send `secret` first. `make_pool` creates the
    worker pool, in the server's thread. `execute` carries out a command; it is called in another thread, for one
    command at a time, and a GenaiServerError that it raises is the reply. `tool_servers` are the configured tool
    servers (MCP) by name; with `takes_tool_addresses`, requests may also name tool servers by URL. The constructor
    raises OSError if the socket cannot be opened.
    """

    def __init__(
        self,
        folder: Path,
        secret: str,
        make_pool: Callable[[], WorkerPool],
        execute: Callable[[Command], None] = lambda command: None,
        *,
        tool_servers: Mapping[str, ToolServer] = MappingProxyType({}),
        takes_tool_addresses: bool = False,
    ) -> None:
        self._folder = folder
        self._secret = secret
        self._make_pool = make_pool
        self._execute = execute
        self._tools = partial(ToolServers, tool_servers, takes_addresses=takes_tool_addresses)
        # The last status, for API processes that connect later.
        self._status = NO_SERVER
        self._connected: set[_ApiProcess] = set()
        self._ready = threading.Event()
        self._error: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="api-processes", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    @property
    def num_connected(self) -> int:
        """The number of connected API processes. Any thread may read it."""
        return len(self._connected)

    def publish(self, status: ServerStatus) -> None:
        """Send `status` to all connected API processes, and to those that connect later. Must not be called in the
        server's own thread.

        Returns when the status was passed to the operating system, but at most after a second. So an API process learns
        why an engine ends before its connection to the engine breaks.
        """
        written = threading.Event()

        def send() -> None:
            self._status = status
            for api_process in list(self._connected):
                api_process.send(status)
            written.set()

        if self._loop is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(send)
                written.wait(_PUBLISH_TIMEOUT)

    def close(self) -> None:
        """Close all connections, end the worker processes and the tool servers, and wait for the server's thread.
        Running and waiting tasks fail.
        """
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except OSError as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        pool = self._make_pool()
        tools = self._tools()
        protocol = partial(_ApiProcess, self, pool, tools, HeldRequests())
        if sys.platform == "win32":
            server = await loop.create_server(protocol, "127.0.0.1", 0)
            address = "{}:{}".format(*server.sockets[0].getsockname())
        else:
            address = str(self._folder / "supervisor.sock")
            server = await loop.create_unix_server(protocol, address)
        write_address(self._folder, SupervisorAddress(address, self._secret, os.getpid()))
        self._commands = ThreadPoolExecutor(1, "commands")
        self._ready.set()
        try:
            await self._stopping.wait()
        finally:
            server.close()
            pool.close()
            await asyncio.sleep(0)  # so that the tasks that fail now are reported
            for api_process in list(self._connected):
                api_process.abort()
            await asyncio.sleep(0)
            await tools.close()
            self._commands.shutdown(wait=False, cancel_futures=True)

    # the connections

    def add(self, api_process: "_ApiProcess") -> None:
        """Register the connection of an API process that has sent the secret, and send it the current status."""
        self._connected.add(api_process)
        if self._status is not NO_SERVER:
            api_process.send(self._status)

    def remove(self, api_process: "_ApiProcess") -> None:
        """Forget the connection of an API process, because it has ended."""
        self._connected.discard(api_process)

    def is_secret(self, secret: str) -> bool:
        """Return whether the text that an API process has sent is the server's secret. The comparison takes constant
        time.
        """
        return hmac.compare_digest(secret.encode(), self._secret.encode())

    async def reply(self, ask: Ask) -> CommandReply:
        """Carry out a command of an API process in the thread for commands, and return the reply, which contains the
        error if the command failed.
        """
        error = await asyncio.get_running_loop().run_in_executor(self._commands, self._error_of, ask.command)
        return CommandReply(ask.call, None if error is None else ErrorInfo.from_error(error))

    def _error_of(self, command: Command) -> GenaiServerError | None:
        try:
            self._execute(command)
        except GenaiServerError as error:
            return error
        except Exception as error:  # the thread must survive for the next command
            log.exception("a command to the supervisor")
            return ConfigurationError(f"the command cannot be carried out: {in_one_line(error)}")
        return None


class _ApiProcess(asyncio.Protocol):
    """The supervisor's connection to one API process, as an asyncio protocol. It checks the secret in the first
    message, and passes later messages to the worker pool, the tool servers or the supervisor.
    """

    def __init__(self, server: SupervisorServer, pool: WorkerPool, tools: ToolServers, held: HeldRequests) -> None:
        self._server = server
        self._decoder = supervisor_decoder(_MAX_UNAUTHENTICATED_BYTES)
        self._is_welcome = False
        self._transport: asyncio.WriteTransport | None = None
        self._session = PoolSession(pool, self.send)
        self._tools = ToolSession(tools, held, self.send)
        self._commands: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport on which messages are sent. asyncio calls this method when the connection begins."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def abort(self) -> None:
        """Close the connection to the API process at once, without sending what is still unsent."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Decode and handle received messages. An invalid message closes the connection. Called by asyncio."""
        try:
            for message in self._decoder.feed(data):
                self._receive(message)
        except (msgspec.DecodeError, RecursionError, KeyError) as error:
            log.warning("closed a connection to the supervisor that is not an API process: %s", in_one_line(error))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the tasks and tools of the API process, whose connection has ended. asyncio calls this method; `error`
        is not used.
        """
        self._transport = None
        self._server.remove(self)
        self._session.close()
        self._tools.close()

    def send(self, message: FromSupervisor) -> None:
        """Send a message to the API process, unless the connection has ended.

        An API process that leaves too many bytes unread is disconnected.
        """
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(encode_frame([message]))
        if self._transport.get_write_buffer_size() > _MAX_BACKLOG_BYTES:
            log.warning("disconnected an API process that does not read what the supervisor sends")
            self.abort()

    def _receive(self, message: ToSupervisor) -> None:
        if not self._is_welcome:
            if not isinstance(message, Hello) or not self._server.is_secret(message.secret):
                raise msgspec.DecodeError("no secret, or a wrong one")
            self._is_welcome = True
            self._decoder.max_bytes = MAX_TASK_FRAME_BYTES
            self._server.add(self)
        elif isinstance(message, Ask):
            task = asyncio.create_task(self._run_command(message))
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)
        elif isinstance(message, ListTools | RunTool | StopTool | HoldRequest | ReleaseRequest | FindRequests):
            self._tools.receive(message)
        elif not isinstance(message, Hello):
            self._session.receive(message)

    async def _run_command(self, ask: Ask) -> None:
        self.send(await self._server.reply(ask))
