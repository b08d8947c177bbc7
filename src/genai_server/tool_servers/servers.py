"""The tool servers of a supervisor, which start when they are needed first, and what API processes ask of them."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from genai_server.config.tool_servers import ToolServer
from genai_server.errors import ToolServerUnavailable, in_one_line
from genai_server.images.sources import is_public
from genai_server.messages.tool_servers import (
    FromToolServers,
    ListTools,
    RunTool,
    StopTool,
    ToolInfo,
    ToolList,
    ToolOutput,
    ToolServerFailed,
    ToToolServers,
)

if TYPE_CHECKING:
    from genai_server.tool_servers.connection import ToolServerConnection

log = logging.getLogger(__name__)
# Seconds after a tool server's failed start during which requests get that failure, and no new start is tried.
_NOT_AGAIN_FOR = 5.0
# Seconds for all servers to end with the supervisor.
_END_TIMEOUT = 5.0


_NOT_INSTALLED = "the package mcp is not installed (the extra mcp of genai-server)"

Connect = Callable[[ToolServer, Callable[[str], bool]], "ToolServerConnection"]


def _load() -> Connect | None:
    try:
        from genai_server.tool_servers.connection import ToolServerConnection
    except ImportError as error:
        log.warning("tool servers cannot be used: %s: %s", _NOT_INSTALLED, in_one_line(error))
        return None
    return ToolServerConnection


class ToolServers:
    """Starts each server for the first request that needs it, and again after it has ended. Belongs to one event loop;
    must be closed.
    """

    def __init__(self, servers: Mapping[str, ToolServer]) -> None:
        self._servers = servers
        # What connects to a server; None if the package is not installed. Importing it takes long, so it happens before
        # any request needs it.
        self._connect = _load() if servers else None
        self._connections: dict[str, ToolServerConnection] = {}
        # Connections in whose place others are.
        self._old: set[ToolServerConnection] = set()
        # When servers failed to start, by the loop's clock, and how.
        self._failed: dict[str, tuple[float, ToolServerUnavailable]] = {}

    async def tools(self, name: str) -> list[ToolInfo]:
        """The tools of a server that requests may use. Raises ToolServerUnavailable."""
        try:
            return await self._connection(name).tools()
        except ToolServerUnavailable as error:
            self._failed[name] = asyncio.get_running_loop().time(), error
            raise

    async def run(
        self, name: str, tool: str, arguments: bytes, seconds: float, *, tenant: str = ""
    ) -> tuple[str, bool]:
        """What a tool returns, and whether that is an error. Raises ToolServerUnavailable."""
        return await self._connection(name).run(tool, arguments, seconds, tenant=tenant)

    async def close(self) -> None:
        """End all servers."""
        connections = [*self._connections.values(), *self._old]
        if connections:
            await asyncio.wait([asyncio.create_task(each.close()) for each in connections], timeout=_END_TIMEOUT)

    def _connection(self, name: str) -> "ToolServerConnection":
        found = self._connections.get(name)
        if found is not None and found.is_usable:
            return found
        server = self._servers.get(name)
        if server is None:
            raise ToolServerUnavailable(f"tool server {name}: the supervisor does not know it")
        if self._connect is None:
            raise ToolServerUnavailable(f"tool server {name}: {_NOT_INSTALLED}")
        failed_at, error = self._failed.pop(name, (0.0, None))
        if error is not None and asyncio.get_running_loop().time() - failed_at < _NOT_AGAIN_FOR:
            self._failed[name] = failed_at, error
            raise error
        self._old = {each for each in self._old if not each.has_ended}
        if found is not None:
            self._old.add(found)
        may_connect: Callable[[str], bool] = (lambda address: True) if server.private else is_public
        self._connections[name] = self._connect(server, may_connect)
        return self._connections[name]


class ToolSession:
    """Answers the questions of one API process. Belongs to the event loop of the servers."""

    def __init__(self, servers: ToolServers, send: Callable[[FromToolServers], None]) -> None:
        self._servers = servers
        self._send = send
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def close(self) -> None:
        """The API process has gone: nobody waits for answers any more."""
        for task in list(self._tasks.values()):
            task.cancel()

    def receive(self, message: ToToolServers) -> None:
        """Take a message."""
        if isinstance(message, StopTool):
            if message.id in self._tasks:
                self._tasks[message.id].cancel()
            return
        task = self._tasks[message.id] = asyncio.create_task(self._answer(message))
        task.add_done_callback(lambda _: self._tasks.pop(message.id, None))

    async def _answer(self, message: ListTools | RunTool) -> None:
        try:
            if isinstance(message, ListTools):
                self._send(ToolList(message.id, await self._servers.tools(message.server)))
            else:
                text, is_error = await self._servers.run(
                    message.server, message.tool, message.arguments, message.seconds, tenant=message.tenant
                )
                self._send(ToolOutput(message.id, text, is_error))
        except ToolServerUnavailable as error:
            self._fail(message, str(error))
        except Exception as error:
            log.exception("internal error of a tool server")
            self._fail(message, f"tool server {message.server}: {in_one_line(error)}")

    def _fail(self, message: ListTools | RunTool, reason: str) -> None:
        if isinstance(message, ListTools):
            self._send(ToolServerFailed(message.id, reason))
        else:  # the model reads it
            self._send(ToolOutput(message.id, reason, is_error=True))
