"""Tool servers at an address, also those that do harm."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from genai_server.config.tool_servers import ToolServer
from genai_server.errors import ToolServerUnavailable
from genai_server.messages.supervisor_protocol import ServerAddress
from genai_server.tool_servers import servers as tool_servers
from genai_server.tool_servers.servers import ToolServers
from tests.tool_server import TOOLS, answer

pytestmark = pytest.mark.anyio
SECRET = "Bearer s3cret-of-the-operator"


class Address(ThreadingHTTPServer):
    """Speaks MCP by streamable HTTP, and keeps the headers of the requests. The tool `flood` answers without end.

    `num_starts` counts the connections.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.headers: list[dict[str, str]] = []
        # Where requests are redirected to; "" for nowhere.
        self.elsewhere = ""
        self.num_starts = 0

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}/mcp"


class Handler(BaseHTTPRequestHandler):
    server: Address

    def do_POST(self) -> None:
        self.server.headers.append(dict(self.headers))
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.num_starts += request["method"] == "initialize"
        if self.server.elsewhere:
            self.send_response(307)
            self.send_header("location", self.server.elsewhere)
            self.end_headers()
            return
        if "id" not in request:
            self.send_response(202)
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        if request.get("params", {}).get("name") == "flood":
            with suppress(OSError):  # once the client has closed the connection
                while True:
                    self.wfile.write(b" " * 65536)
            return
        self.wfile.write(json.dumps({"jsonrpc": "2.0", **answer(request)}).encode())

    def do_GET(self) -> None:
        self.send_response(405)
        self.end_headers()

    do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def listening() -> Iterator[Address]:
    with Address() as address:
        thread = threading.Thread(target=address.serve_forever)
        thread.start()
        yield address
        address.shutdown()
        thread.join()


@pytest.fixture
def address() -> Iterator[Address]:
    with listening() as address:
        yield address


@pytest.fixture
def on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's addresses count as public."""
    monkeypatch.setattr(tool_servers, "is_public", lambda address: True)


@asynccontextmanager
async def closing(servers: ToolServers) -> AsyncIterator[ToolServers]:
    try:
        yield servers
    finally:
        await servers.close()


def visiting() -> AbstractAsyncContextManager[ToolServers]:
    """No servers but those that requests name by their URLs."""
    return closing(ToolServers({}, takes_addresses=True))


def served(url: str, **fields: Any) -> AbstractAsyncContextManager[ToolServers]:
    server = ToolServer.model_validate({"name": "test", "url": url, "private": True, **fields})
    return closing(ToolServers({"test": server}))


async def test_tools_are_run_with_the_headers_of_the_table(address: Address) -> None:
    async with served(address.url, headers={"Authorization": SECRET}) as servers:
        assert [tool.name for tool in await servers.tools("test")] == [*TOOLS]
        assert await servers.run("test", "add", b'{"a": 1, "b": 2}', 60) == ("3", False)
    assert {headers["Authorization"] for headers in address.headers} == {SECRET}
    # The name of the host stays, although the connection goes to the address that was checked.
    assert {headers["Host"] for headers in address.headers} == {f"localhost:{address.server_port}"}


async def test_addresses_of_this_machine_need_a_word_of_the_operator(address: Address) -> None:
    for choice, at in (
        (served(address.url, private=False), None),
        (visiting(), ServerAddress(address.url)),
    ):
        async with choice as servers:
            with pytest.raises(ToolServerUnavailable, match="localhost leads to this machine or its networks"):
                await servers.tools("test", at)
    assert address.headers == []


async def test_a_response_without_end_costs_its_call(address: Address) -> None:
    async with served(address.url, max_message_bytes=50_000, timeout=60) as servers:
        await servers.tools("test")
        with pytest.raises(ToolServerUnavailable):
            await servers.run("test", "flood", b"{}", 60)
        assert await servers.run("test", "add", b'{"a": 1, "b": 2}', 60) == ("3", False)


async def test_another_origin_is_not_asked(address: Address) -> None:
    with listening() as other:
        address.elsewhere = other.url
        async with served(address.url, headers={"Authorization": SECRET}) as servers:
            with pytest.raises(ToolServerUnavailable):
                await servers.tools("test")
    assert other.headers == []


async def test_an_address_where_nothing_listens_says_so(address: Address) -> None:
    async with served("http://127.0.0.1:9/mcp") as servers:
        with pytest.raises(ToolServerUnavailable, match="tool server test: ConnectError"):
            await servers.tools("test")


@pytest.mark.usefixtures("on_this_machine")
async def test_each_key_has_connections_of_its_own_to_addresses_in_requests(address: Address) -> None:
    async with visiting() as servers:
        for token in ("Bearer one", "Bearer two"):
            at = ServerAddress(address.url, {"authorization": token})
            for tenant in ("alice", "bob"):
                for _ in range(2):
                    given = b'{"a": 1, "b": 2}'
                    assert await servers.run("x", "add", given, 60, at, tenant=tenant) == ("3", False)
    assert address.num_starts == 4
    assert {headers["authorization"] for headers in address.headers} == {"Bearer one", "Bearer two"}


@pytest.mark.usefixtures("on_this_machine")
async def test_connections_that_a_key_has_not_used_for_longest_end(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_servers, "_MAX_VISITED", 2)
    async with visiting() as servers:
        visits = [("/1", 1), ("/2", 2), ("/1", 2), ("/3", 3), ("/2 of bob", 4), ("/1", 4), ("/2", 5)]
        for path, num_starts in visits:
            tenant = path.partition(" of ")[2] or "alice"
            assert await servers.tools("x", ServerAddress(address.url + path[:2]), tenant=tenant)
            assert address.num_starts == num_starts


@pytest.mark.usefixtures("on_this_machine")
async def test_a_connection_without_use_ends(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_servers, "_IDLE_TIMEOUT", 0.0)
    async with visiting() as servers:
        for _ in range(2):
            assert await servers.tools("x", ServerAddress(address.url))
            await asyncio.sleep(0.01)
    assert address.num_starts == 2
