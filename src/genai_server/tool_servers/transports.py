"""Transports for MCP messages between the supervisor and a tool server: standard streams of a program, or HTTP.

The SDK's own transports trust the server. These transports limit the size of a message and the number of messages
between two requests. Beyond these limits the connection ends.
"""

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, jsonrpc_message_adapter

from genai_server.config.environment import program_environment
from genai_server.config.tool_servers import ToolServer

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
    """Replace the values of the server's environment and headers in a text by "[secret]"."""
    for secret in server.secrets:
        text = text.replace(secret, "[secret]")
    return text


class Program:
    """A tool server that is a program: starts the program, and exchanges messages through its standard streams."""

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
        """Run the program during the block, and yield the two streams for reading and writing messages.

        Raises OSError if it cannot be started.
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
        """The end of what the program has written to its standard error output, for operators."""
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
    """End a program and its child processes: close its standard input, and kill it after `grace` seconds."""
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
    """Connect to the URL of a tool server during the block, and yield the two streams for reading and writing messages.

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
    """HTTP transport that connects only to allowed IP addresses and limits the size of responses."""

    def __init__(self, max_bytes: int, may_connect: Callable[[str], bool]) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=ssl.create_default_context(), trust_env=False)
        self._max_bytes = max_bytes
        self._may_connect = may_connect

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Resolve the host, check its addresses, and send the request to one of them (called by httpx2)."""
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
        """Close all connections."""
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """The body of an HTTP response as a stream of bytes. Reading fails if it is longer than `max_bytes`."""

    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._max_bytes
        async for data in self._stream:
            left -= len(data)
            if left < 0:
                raise httpx2.ReadError(f"a response has more than {self._max_bytes} bytes")
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()
