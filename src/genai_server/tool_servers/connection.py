"""A connection to one tool server (MCP), from its start to its end (`ToolServerConnection`). It lists the server's
tools and calls them, over the standard streams of a program (`Program`) or over HTTP (`connect_by_http`).

The transports of the MCP SDK trust the server. Those of this module limit the size of a message and the number of
messages between two requests. Beyond these limits the connection ends.
"""

import asyncio
import json
import logging
import math
import os
import re
import signal
import socket
import ssl
import sys
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, jsonrpc_message_adapter
from pydantic import ValidationError

from genai_server import __version__
from genai_server.config.environment import program_environment
from genai_server.config.tool_servers import ToolServer
from genai_server.errors import ToolServerUnavailable, escaped, in_one_line, quoted
from genai_server.messages.supervisor_protocol import ToolInfo

log = logging.getLogger(__name__)
# Messages that a server may send between two requests to it, such as reports of progress.
_MAX_MESSAGES = 10_000
# Bytes of a program's last errors that the log has.
_MAX_ERRORS = 2000
# Seconds in which a program may end once its standard input has ended, before it is killed; and for its last output.
_GRACE, _LAST_OUTPUT = 2.0, 1.0
# Seconds for connecting to an address.
_CONNECT_TIMEOUT = 10.0
Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


def without_secrets(text: str, server: ToolServer) -> str:
    """Return `text` with the values of the tool server's environment and headers replaced by "[secret]"."""
    for secret in server.secrets:
        text = text.replace(secret, "[secret]")
    return text


class Program:
    """A tool server (MCP) that is a program on this machine: starts the program, and exchanges messages through its
    standard streams. ToolServerConnection creates it.
    """

    def __init__(self, server: ToolServer) -> None:
        self._server = server
        # Set once nothing more comes from it, and why.
        self.ended = asyncio.Event()
        self.why = ""
        self._is_out_of_bounds = False
        self._errors = b""
        self._num_left = _MAX_MESSAGES
        self._bytes_left = 0

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Streams]:
        """Return an asynchronous context manager: the program runs during the block, which gets the two streams for
        reading and writing messages.

        Raises OSError if the program cannot be started.
        """
        loop, limit = asyncio.get_running_loop(), self._server.max_message_bytes
        # As asyncio.create_subprocess_exec, whose process keeps the transport to itself: it must be closed, because a
        # program may leave others behind that have its streams.
        transport, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(limit, loop),
            *(self._server.command or ()),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=program_environment() | self._server.env,
            cwd=self._server.folder,
            start_new_session=True,
        )
        process = Process(transport, protocol, loop)
        received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.create_task(each)
            for each in (self._read(process, received), self._write(process, sent), self._read_errors(process))
        ]
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                for task in tasks[:2]:
                    task.cancel()
                await _end(process, 0.0 if self._is_out_of_bounds else _GRACE)
                await asyncio.wait(tasks, timeout=_LAST_OUTPUT)
                for task in tasks:
                    task.cancel()
                transport.close()
                for stream in (received, incoming, outgoing, sent):
                    await stream.aclose()

    @property
    def errors(self) -> str:
        """The last text that the program has written to its standard error output, to show it to operators."""
        return self._errors.decode(errors="replace").strip()

    async def _read(self, process: Process, received: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        assert process.stdout is not None
        try:
            while True:
                line = await process.stdout.readuntil(b"\n")
                self._num_left -= 1
                self._bytes_left -= len(line)
                if self._num_left < 0 or self._bytes_left < -self._server.max_message_bytes:
                    self._is_out_of_bounds, self.why = True, "it sent too much without being asked"
                    return
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError as error:
                    if "recursion limit" not in str(error):
                        continue  # many programs write to standard output what is no message
                    self._is_out_of_bounds, self.why = True, "it sent a message that is nested too deep"
                    return
                await received.send(SessionMessage(message))
        except asyncio.IncompleteReadError:
            self.why = "it ended"
        except asyncio.LimitOverrunError:
            self._is_out_of_bounds = True
            self.why = f"it sent a message of more than {self._server.max_message_bytes} bytes (max_message_bytes)"
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self.why = "its connection broke"
        finally:
            await received.aclose()
            self.ended.set()

    async def _write(self, process: Process, sent: MemoryObjectReceiveStream[SessionMessage]) -> None:
        assert process.stdin is not None
        with suppress(OSError):  # the reading task sees how it ended
            async for message in sent:
                if isinstance(message.message, JSONRPCRequest):
                    self._num_left = _MAX_MESSAGES
                    self._bytes_left = 2 * self._server.max_message_bytes
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode(errors="replace") + b"\n")
                await process.stdin.drain()

    async def _read_errors(self, process: Process) -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(65536):
            self._errors += data
            # Before the beginning is cut off, which may be that of a secret.
            for secret in self._server.secrets:
                self._errors = self._errors.replace(secret.encode(), b"[secret]")
            self._errors = self._errors[-_MAX_ERRORS:]


async def _end(process: Process, grace: float) -> None:
    """End a program and its child processes: close its standard input, and kill them if the program has not ended after
    `grace` seconds.
    """
    assert process.stdin is not None
    process.stdin.close()
    if process.returncode is None and grace:
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await process.wait()
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)  # also of what it has left behind
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE):
            await process.wait()


@asynccontextmanager
async def connect_by_http(server: ToolServer, may_connect: Callable[[str], bool]) -> AsyncGenerator[Any]:
    """Return an asynchronous context manager: during the block, a tool server's URL is connected, and the block gets
    the two streams for reading and writing messages.

    `may_connect` receives each IP address to which the host name resolves, and says whether connecting to it is
    allowed.
    """
    assert server.url is not None
    # Without compression a response is as long as its text.
    headers = {**server.headers, "accept-encoding": "identity"}
    timeout = httpx2.Timeout(max(server.timeout, server.start_timeout), connect=_CONNECT_TIMEOUT)
    async with (
        httpx2.AsyncClient(
            headers=headers,
            timeout=timeout,
            trust_env=False,
            transport=_Checked(4 * server.max_message_bytes, may_connect),
        ) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=server.max_message_bytes, terminate_on_close=True
        ) as streams,
    ):
        yield streams


class _Checked(httpx2.AsyncBaseTransport):
    """An HTTP transport for httpx2 that connects only to allowed IP addresses and limits the size of responses, so that
    a tool server's URL cannot reach internal hosts.
    """

    def __init__(self, max_bytes: int, may_connect: Callable[[str], bool]) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=ssl.create_default_context(), trust_env=False)
        self._max_bytes = max_bytes
        self._may_connect = may_connect

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Resolve the URL's host, check its IP addresses, send the request to one of them, and return the response,
        whose size is limited. Called by httpx2.
        """
        host = request.url.host
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpx2.ConnectError(f"{host}: {error.strerror or error}") from None
        addresses = [str(each[4][0]) for each in infos]
        if not addresses or not all(map(self._may_connect, addresses)):
            raise httpx2.ConnectError(f"{host} leads to this machine or its networks, which needs private = true")
        # The connection goes to the checked address: the name may resolve to another one a moment later.
        checked = httpx2.Request(
            request.method,
            request.url.copy_with(host=addresses[0]),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        response = await self._inner.handle_async_request(checked)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Bounded(response.stream, self._max_bytes),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close all HTTP connections. Called by httpx2."""
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """The body of an HTTP response as a stream of bytes. Reading it raises httpx2.ReadError if the body is longer than
    `max_bytes` bytes.
    """

    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        bytes_left = self._max_bytes
        async for data in self._stream:
            bytes_left -= len(data)
            if bytes_left < 0:
                raise httpx2.ReadError(f"a response has more than {self._max_bytes} bytes")
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


class CallSlots:
    """Limits the calls of a tool server that run at once to `number`; further calls wait. A tenant is an API key;
    requests without a key are one tenant.

    The next call belongs to the waiting tenant with the fewest running calls; of equal tenants, to the one that has
    waited longest. If more than one call is allowed, no tenant may use all of them, so that another tenant's call can
    start at once.
    """

    def __init__(self, number: int) -> None:
        self._num_free = number
        self._max_per_tenant = max(1, number - 1)
        self._running: Counter[str] = Counter()
        # In order of arrival. The future is set when the call may run.
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncGenerator[None]:
        """Return an asynchronous context manager: it waits until a call of the tenant may run, and counts the call as
        running during the block.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((tenant, turn))
        self._start_waiting()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((tenant, turn))
            else:  # it was given the place at the same moment
                self._release(tenant)
            raise
        try:
            yield
        finally:
            self._release(tenant)

    def _release(self, tenant: str) -> None:
        self._num_free += 1
        self._running[tenant] -= 1
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._num_free:
            startable = [
                each for each in self._waiting if not each[1].done() and self._running[each[0]] < self._max_per_tenant
            ]
            if not startable:
                return
            chosen = min(startable, key=lambda each: self._running[each[0]])
            self._waiting.remove(chosen)
            self._num_free -= 1
            self._running[chosen[0]] += 1
            chosen[1].set_result(None)


# The SDK logs what servers send, which may be secrets, and as much as they like.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)
# With the server's name and two underscores before it, a tool's name must be one of a function.
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,80}")
# Limits of what a server says about its tools. Every request that uses the server gets all of it.
_MAX_PAGES, _MAX_TOOLS, _MAX_DESCRIPTION, _MAX_SCHEMA, _MAX_LIST = 16, 128, 4096, 64 * 1024, 512 * 1024
# Names of tools that cannot be used, in the log.
_MAX_NAMED = 5


class ToolServerConnection:
    """The connection to one tool server (MCP), which the constructor begins to start or connect to in a task. It is
    usable until it is retired or closed, or the server ends or gets stuck. ToolServers creates it and must close it.
    """

    def __init__(self, server: ToolServer, may_connect: Callable[[str], bool]) -> None:
        self._server = server
        self._may_connect = may_connect
        self._program = Program(server) if server.command is not None else None
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        # None if the server has said that they have changed.
        self._tools: list[ToolInfo] | None = None
        self._slots = CallSlots(server.max_calls)
        self._num_calls = 0
        # Whether it takes no more calls.
        self._is_retired = False
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def is_usable(self) -> bool:
        """Whether the tool server is starting or running and accepts further calls."""
        return not self._is_retired and not self._task.done()

    @property
    def has_ended(self) -> bool:
        """Whether the connection has ended for good. A tool server that was started as a program has then
        ended, too.
        """
        return self._task.done()

    async def tools(self) -> list[ToolInfo]:
        """Wait until the tool server has started, and return those of its tools that requests may use.

        Raises ToolServerUnavailable if the server cannot be started or has ended.
        """
        client = await self._started()
        if self._tools is None:
            try:
                async with asyncio.timeout(self._server.start_timeout):
                    self._tools = await self._list(client)
            except Exception as error:
                self.retire()
                raise self._unavailable(error) from None
        return self._tools

    async def run(self, tool: str, arguments: bytes, seconds: float, *, tenant: str) -> tuple[str, bool]:
        """Call the tool `tool` with `arguments`, a JSON object as text, for at most `seconds` seconds. Returns the
        tool's output, and whether the output is an error. Raises ToolServerUnavailable if the tool cannot be called.

        `tenant` is the API key whose share of the concurrent calls is used. If the server does not answer in time, or
        before the caller is cancelled, it may be stuck. It then gets no more calls, and is ended when its running calls
        have ended. This does not happen if the call was still waiting for other calls.
        """
        client = await self._started()
        self._num_calls += 1
        has_slot = False
        try:
            async with asyncio.timeout(seconds if math.isfinite(seconds) else None), self._slots.slot(tenant):
                has_slot = True
                async with asyncio.timeout(self._server.timeout):
                    result = await client.session.send_request(
                        types.CallToolRequest(
                            params=types.CallToolRequestParams(name=tool, arguments=json.loads(arguments))
                        ),
                        types.CallToolResult,
                    )
        except asyncio.CancelledError:
            if has_slot:
                self.retire()
            raise
        except TimeoutError:
            if not has_slot:
                return f"the tool was busy with other calls for {seconds:g} s", True
            self.retire()
            log.warning("tool server %s has not answered in time, and is ended", self._server.name)
            return f"the tool has not answered within {min(seconds, self._server.timeout):g} s", True
        except MCPError as error:
            if error.error.code == types.CONNECTION_CLOSED:
                self.retire()
                raise self._unavailable(error) from None
            return self._cut(error.error.message), True
        except ValidationError:
            return "the tool's answer does not follow the Model Context Protocol", True
        except Exception as error:
            self.retire()
            raise self._unavailable(error) from None
        else:
            return self._cut(_text_of(result)), result.is_error
        finally:
            self._num_calls -= 1
            self._close_unless_used()

    def retire(self) -> None:
        """Accept no further calls, and end the tool server when its running calls have ended. Does not wait."""
        self._is_retired = True
        self._close_unless_used()

    async def close(self) -> None:
        """End the tool server at once and wait for its end. Running calls fail."""
        self._is_retired = True
        self._closing.set()
        await asyncio.wait([self._task])

    def _close_unless_used(self) -> None:
        if self._is_retired and not self._num_calls:
            self._closing.set()

    async def _started(self) -> Client:
        return await asyncio.shield(self._client)

    async def _run(self) -> None:
        failure: ToolServerUnavailable | None = None
        try:
            async with AsyncExitStack() as stack:
                transport = (
                    connect_by_http(self._server, self._may_connect)
                    if self._program is None
                    else self._program.connect()
                )
                async with asyncio.timeout(self._server.start_timeout):
                    client = await stack.enter_async_context(
                        Client(
                            transport,
                            mode="auto",
                            cache=None,
                            message_handler=self._notice,
                            client_info=types.Implementation(name="genai-server", version=__version__),
                        )
                    )
                    self._tools = await self._list(client)
                self._client.set_result(client)
                await self._wait()
        except Exception as error:  # whatever its transport raises
            failure = self._unavailable(error)
        self._is_retired = True
        if not self._client.done():
            failure = failure or self._unavailable(RuntimeError("it was ended"))
            self._client.set_exception(failure)
            self._client.exception()  # nobody may wait for it any more
        self._log_end(failure)

    async def _wait(self) -> None:
        """Wait until the connection is closed or the tool server's program has ended."""
        waits = [asyncio.create_task(self._closing.wait())]
        if self._program is not None:
            waits.append(asyncio.create_task(self._program.ended.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()

    def _log_end(self, failure: ToolServerUnavailable | None) -> None:
        has_broken = self._program is not None and self._program.why
        if failure is None and not has_broken:
            return
        why = str(failure) if failure is not None else f"tool server {self._server.name}: {self._why}"
        errors = "" if self._program is None else self._program.errors
        log.warning("%s%s", why, f"; its last errors: {escaped(errors)}" if errors else "")

    @property
    def _why(self) -> str:
        return (self._program.why if self._program is not None else "") or "it ended"

    def _unavailable(self, error: BaseException) -> ToolServerUnavailable:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        reason = self._program.why if self._program is not None else ""
        if isinstance(error, TimeoutError):
            reason = reason or f"it does not list its tools within {self._server.start_timeout:g} s"
        kind = "" if type(error) is RuntimeError else type(error).__name__
        # Without secrets first: a part of one may be left once the text is cut.
        text = without_secrets(reason or ": ".join(filter(None, (kind, str(error)))), self._server)
        return ToolServerUnavailable(f"tool server {self._server.name}: {in_one_line(RuntimeError(text))[:500]}")

    async def _notice(self, message: Any) -> None:
        """Handle a notification from the tool server, such as a change of its tools. Called by the MCP SDK."""
        if isinstance(message, types.ToolListChangedNotification):
            self._tools = None

    async def _list(self, client: Client) -> list[ToolInfo]:
        tools: dict[str, ToolInfo] = {}
        unusable: list[str] = []
        num_bytes = 0
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            for tool in page.tools:
                if not self._server.may_run(tool.name):
                    continue
                schema = without_secrets(json.dumps(tool.input_schema, ensure_ascii=False), self._server)
                parameters = schema.encode(errors="replace")
                has_name = _TOOL_NAME.fullmatch(tool.name) and without_secrets(tool.name, self._server) == tool.name
                description = without_secrets(tool.description or "", self._server)[:_MAX_DESCRIPTION]
                size = len(parameters) + len(description.encode(errors="replace"))
                is_usable = has_name and tool.name not in tools and len(parameters) <= _MAX_SCHEMA
                if not is_usable or len(tools) == _MAX_TOOLS or num_bytes + size > _MAX_LIST:
                    unusable.append(tool.name)
                    continue
                num_bytes += size
                is_read_only = tool.annotations is not None and tool.annotations.read_only_hint is True
                tools[tool.name] = ToolInfo(tool.name, description, parameters, is_read_only)
            if (cursor := page.next_cursor) is None:
                break
        if unusable:
            named = ", ".join(quoted(without_secrets(name, self._server), 80) for name in unusable[:_MAX_NAMED])
            log.warning(
                "tool server %s: %d tools are left out, because of their name or the size of their schema, or because "
                "there are more than %d tools or %d KiB before them: %s",
                self._server.name,
                len(unusable),
                _MAX_TOOLS,
                _MAX_LIST // 1024,
                named,
            )
        return list(tools.values())

    def _cut(self, text: str) -> str:
        """Return the output of a tool as the model is to read it: secrets are replaced, and text beyond the maximum
        size is cut off.
        """
        data = without_secrets(text, self._server).encode(errors="replace")
        limit = self._server.max_output_bytes
        if len(data) <= limit:
            return data.decode()
        beginning = data[:limit].decode(errors="ignore")
        return f"{beginning}\n[{len(data) - limit} bytes left out: an output may have {limit} bytes (max_output_bytes)]"


def _text_of(result: types.CallToolResult) -> str:
    """Return the result of a tool call as text for the model. Content other than text is replaced by a note."""
    texts = [_text_of_block(block) for block in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(texts)


def _text_of_block(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent(text=str(text)):
            return text
        case types.EmbeddedResource(resource=types.TextResourceContents(text=str(text))):
            return text
        case types.ResourceLink(name=name, uri=uri):
            return f"[resource {name}: {uri}]"
    return f"[{block.type} left out: the model reads the texts of tools only]"
