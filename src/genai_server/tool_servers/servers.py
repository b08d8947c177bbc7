"""The tool servers (MCP) that the supervisor runs for all API processes, started on demand (`ToolServers`); the
supervisor's side of their use by one API process (`ToolSession`); and the list of requests for which tools run
(`HeldRequests`).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import structs

from genai_server.config.tool_servers import ToolServer
from genai_server.errors import ToolServerUnavailable, in_one_line
from genai_server.messages.supervisor_protocol import (
    EndRequest,
    FindRequests,
    FromToolServers,
    HoldRequest,
    ListTools,
    MatchingRequests,
    ReleaseRequest,
    RunTool,
    ServerAddress,
    StopTool,
    ToolInfo,
    ToolList,
    ToolOutput,
    ToolRequest,
    ToolServerFailed,
    ToToolServers,
)
from genai_server.system.addresses import is_public

if TYPE_CHECKING:
    from genai_server.tool_servers.connection import ToolServerConnection

log = logging.getLogger(__name__)
# Seconds after a tool server's failed start during which requests get that failure, and no new start is tried.
_RETRY_DELAY = 5.0
# Seconds after which a connection to a URL ends that is not used, and how many such connections a tenant has at most.
_IDLE_TIMEOUT, _MAX_VISITED = 300.0, 16
# Seconds for all servers to end with the supervisor.
_END_TIMEOUT = 5.0


_NOT_INSTALLED = "the package mcp is not installed (the extra mcp of genai-server)"

# A server's name, or the tenant, the name, the URL and the headers of a server that a request names by its URL.
_Key = str | tuple[Any, ...]
_Send = Callable[[FromToolServers], None]
Connect = Callable[[ToolServer, Callable[[str], bool]], "ToolServerConnection"]


def _load() -> Connect | None:
    try:
        from genai_server.tool_servers.connection import ToolServerConnection
    except ImportError as error:
        log.warning("tool servers cannot be used: %s: %s", _NOT_INSTALLED, in_one_line(error))
        return None
    return ToolServerConnection


class ToolServers:
    """Starts each tool server (MCP) for the first request that needs it, and again after it has ended. The supervisor
    has one for all API processes, and must close it. Only one event loop may use it.

    `servers` are the tool servers in the configuration file by name. With `takes_addresses`, requests may also name
    servers by URL. Connections to such servers are not shared between API keys. They end when they have been idle for a
    while, or when the key has too many of them.
    """

    def __init__(self, servers: Mapping[str, ToolServer], *, takes_addresses: bool = False) -> None:
        self._servers = servers
        # What connects to a server; None if the package is not installed. Importing it takes long, so it happens before
        # any request needs it.
        self._connect = _load() if servers or takes_addresses else None
        # In the order of their last use.
        self._connections: dict[_Key, ToolServerConnection] = {}
        # Connections in whose place others are.
        self._old: set[ToolServerConnection] = set()
        # What ends connections to URLs that are not used.
        self._unused: dict[_Key, asyncio.TimerHandle] = {}
        # When servers failed to start, by the loop's clock, and how.
        self._failed: dict[str, tuple[float, ToolServerUnavailable]] = {}

    async def tools(self, name: str, address: ServerAddress | None = None, *, tenant: str = "") -> list[ToolInfo]:
        """Return the tools of the tool server `name` that requests may use, and start the server if necessary. Raises
        ToolServerUnavailable if that fails.

        `address` is given for a server that a request names by URL, instead of one in the configuration file. `tenant`
        is then the API key that the connection belongs to.
        """
        if address is not None:
            return await self._visited(name, address, tenant).tools()
        try:
            return await self._listed(name).tools()
        except ToolServerUnavailable as error:
            self._failed[name] = asyncio.get_running_loop().time(), error
            raise

    async def run(
        self,
        name: str,
        tool: str,
        arguments: bytes,
        seconds: float,
        address: ServerAddress | None = None,
        *,
        tenant: str = "",
    ) -> tuple[str, bool]:
        """Call the tool `tool` of the tool server `name` with `arguments`, a JSON object as text, for at most `seconds`
        seconds. Returns the output of the tool, and whether the output is an error.

        `address` is given for a server that a request names by URL. `tenant` is the API key; tenants share the calls
        that may run at once. Raises ToolServerUnavailable if the tool cannot be called.
        """
        connection = self._listed(name) if address is None else self._visited(name, address, tenant)
        return await connection.run(tool, arguments, seconds, tenant=tenant)

    async def close(self) -> None:
        """End all tool servers, and wait for their end for a limited time."""
        for timer in self._unused.values():
            timer.cancel()
        connections = [*self._connections.values(), *self._old]
        if connections:
            await asyncio.wait([asyncio.create_task(each.close()) for each in connections], timeout=_END_TIMEOUT)

    def _listed(self, name: str) -> "ToolServerConnection":
        """Return the connection to the server `name` of the configuration file, which is started if necessary. Raises
        ToolServerUnavailable if there is no such server, or if it has just failed to start.
        """
        if (connection := self._usable(name)) is not None:
            return connection
        server = self._servers.get(name)
        if server is None:
            raise ToolServerUnavailable(f"tool server {name}: the supervisor does not know it")
        failed_at, error = self._failed.pop(name, (0.0, None))
        if error is not None and asyncio.get_running_loop().time() - failed_at < _RETRY_DELAY:
            self._failed[name] = failed_at, error
            raise error
        return self._new(name, server)

    def _visited(self, name: str, address: ServerAddress, tenant: str) -> "ToolServerConnection":
        """Return the connection of a tenant (API key) to the tool server at a URL, which is opened if necessary. The
        tenant's least recently used connection to another URL is given up if there are too many.
        """
        key = (tenant, name, address.url, *sorted(address.headers.items()))
        connection = self._usable(key)
        if connection is None:
            tenant_keys = [
                each for each in self._connections if each != key and isinstance(each, tuple) and each[0] == tenant
            ]
            for old_key in tenant_keys[: max(0, len(tenant_keys) - _MAX_VISITED + 1)]:
                self._leave(old_key)
            connection = self._new(key, ToolServer.model_validate({"name": name, **structs.asdict(address)}))
        # Used last.
        self._connections[key] = self._connections.pop(key)
        if key in self._unused:
            self._unused[key].cancel()
        self._unused[key] = asyncio.get_running_loop().call_later(_IDLE_TIMEOUT, self._leave, key)
        return connection

    def _leave(self, key: _Key) -> None:
        """Stop using the connection to a URL that is stored under `key`. It is closed when its running calls have
        ended.
        """
        self._unused.pop(key).cancel()
        connection = self._connections.pop(key)
        connection.retire()
        self._old.add(connection)

    def _usable(self, key: _Key) -> "ToolServerConnection | None":
        connection = self._connections.get(key)
        return connection if connection is not None and connection.is_usable else None

    def _new(self, key: _Key, server: ToolServer) -> "ToolServerConnection":
        """Open a connection to a tool server, store it under `key` in place of one that cannot be used any more, and
        return it. Raises ToolServerUnavailable if the MCP package is not installed.
        """
        if self._connect is None:
            raise ToolServerUnavailable(f"tool server {server.name}: {_NOT_INSTALLED}")
        self._old = {each for each in self._old if not each.has_ended}
        if key in self._connections:
            self._old.add(self._connections[key])
        may_connect: Callable[[str], bool] = (lambda address: True) if server.private else is_public
        self._connections[key] = self._connect(server, may_connect)
        return self._connections[key]


class HeldRequests:
    """The requests of all API processes for which tools run at the moment. No engine knows such a request, so the
    supervisor keeps this list, by which operators find and end requests.
    """

    def __init__(self) -> None:
        # Each with the time of its last description, keyed by what sends to its API process, and its number there.
        self._held: dict[tuple[_Send, int], tuple[ToolRequest, float]] = {}

    def hold(self, send: _Send, message: HoldRequest) -> None:
        """Store the description in `message` of a request for which tools run, or replace the stored one with the same
        id.

        `send` sends messages to the request's API process, and also identifies that process.
        """
        self._held[send, message.id] = message.request, time.monotonic()

    def release(self, send: _Send, id: int) -> None:
        """Remove the request with the number `id` of the API process that `send` identifies, because its tools no
        longer run.
        """
        self._held.pop((send, id), None)

    def forget(self, send: _Send) -> None:
        """Remove all requests of the API process that `send` identifies from the list, because the connection to that
        process has ended.
        """
        self._held = {key: held for key, held in self._held.items() if key[0] is not send}

    def find(self, question: FindRequests) -> list[ToolRequest]:
        """Return the requests that match the fields of `question`. If `question.end` is set, their API processes are
        told to end them for that reason.

        If several requests have the id `question.name`, they are returned but not ended.
        """
        matches = {
            key: _with_age(*held)
            for key, held in self._held.items()
            if question.model_devices is None or _is_at(held[0], question.model_devices)
        }
        if question.name is not None:
            unique = {key: held for key, held in matches.items() if held.state.unique_id == question.name}
            matches = unique or {key: held for key, held in matches.items() if held.state.request_id == question.name}
        if question.end is not None and (question.name is None or len(matches) == 1):
            for send, id in matches:
                send(EndRequest(id, question.end))
        return list(matches.values())


def _is_at(request: ToolRequest, model_devices: list[tuple[str, str]]) -> bool:
    """Return whether a request belongs to one of the pairs of model and device. A request that no engine has had yet
    has no device, so only its model is compared.
    """
    return any(model == request.model and request.device in ("", device) for model, device in model_devices)


def _with_age(request: ToolRequest, since: float) -> ToolRequest:
    age = request.state.age + time.monotonic() - since
    return structs.replace(request, state=structs.replace(request.state, age=age))


class ToolSession:
    """The supervisor's side of one API process's use of tool servers: handles the messages of that process, and sends
    the replies with the function `send`. Only the event loop of the tool servers may use it.
    """

    def __init__(self, servers: ToolServers, held: HeldRequests, send: Callable[[FromToolServers], None]) -> None:
        self._servers = servers
        self._held = held
        self._send = send
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def close(self) -> None:
        """Cancel the running calls of the API process and remove its requests from the list, because its connection has
        ended.
        """
        self._held.forget(self._send)
        for task in list(self._tasks.values()):
            task.cancel()

    def receive(self, message: ToToolServers) -> None:
        """Handle a message from the API process, such as a call of a tool."""
        match message:
            case StopTool(id):
                if id in self._tasks:
                    self._tasks[id].cancel()
            case HoldRequest():
                self._held.hold(self._send, message)
            case ReleaseRequest(id):
                self._held.release(self._send, id)
            case FindRequests(id):
                self._send(MatchingRequests(id, self._held.find(message)))
            case ListTools() | RunTool():
                self._start(message)

    def _start(self, message: ListTools | RunTool) -> None:
        task = self._tasks[message.id] = asyncio.create_task(self._answer(message))
        task.add_done_callback(lambda _: self._tasks.pop(message.id, None))

    async def _answer(self, message: ListTools | RunTool) -> None:
        try:
            if isinstance(message, ListTools):
                tools = await self._servers.tools(message.server, message.address, tenant=message.tenant)
                self._send(ToolList(message.id, tools))
            else:
                text, is_error = await self._servers.run(
                    message.server,
                    message.tool,
                    message.arguments,
                    message.seconds,
                    message.address,
                    tenant=message.tenant,
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
