"""Tool servers at an address, also those that do harm."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from genai_server.config.tool_servers import ToolServer
from genai_server.errors import ToolServerUnavailable
from genai_server.tool_servers.servers import ToolServers
from tests.tool_server import TOOLS, answer

SECRET = "Bearer s3cret-of-the-operator"


class Address(ThreadingHTTPServer):
    """Speaks MCP by streamable HTTP, and keeps the headers of the requests. The tool `flood` answers without end."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.headers: list[dict[str, str]] = []
        # Where requests are redirected to; "" for nowhere.
        self.elsewhere = ""

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_port}/mcp"


class Handler(BaseHTTPRequestHandler):
    server: Address

    def do_POST(self) -> None:
        self.server.headers.append(dict(self.headers))
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
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


@pytest.fixture
def address() -> Iterator[Address]:
    with Address() as address:
        thread = threading.Thread(target=address.serve_forever)
        thread.start()
        yield address
        address.shutdown()
        thread.join()


@asynccontextmanager
async def served(url: str, **fields: Any) -> AsyncIterator[ToolServers]:
    server = ToolServer.model_validate({"name": "test", "url": url, "private": True, **fields})
    servers = ToolServers({"test": server})
    try:
        yield servers
    finally:
        await servers.close()


def test_tools_are_run_with_the_headers_of_the_table(address: Address) -> None:
    async def main() -> None:
        async with served(address.url, headers={"Authorization": SECRET}) as servers:
            assert [tool.name for tool in await servers.tools("test")] == [*TOOLS]
            assert await servers.run("test", "add", b'{"a": 1, "b": 2}', 60) == ("3", False)

    asyncio.run(main())
    assert {headers["Authorization"] for headers in address.headers} == {SECRET}
    # The name of the host stays, although the connection goes to the address that was checked.
    assert {headers["Host"] for headers in address.headers} == {f"localhost:{address.server_port}"}


def test_addresses_of_this_machine_need_a_word_of_the_operator(address: Address) -> None:
    async def main() -> None:
        async with served(address.url, private=False) as servers:
            with pytest.raises(ToolServerUnavailable, match="localhost leads to this machine or its networks"):
                await servers.tools("test")

    asyncio.run(main())
    assert address.headers == []


def test_a_response_without_end_costs_its_call(address: Address) -> None:
    async def main() -> None:
        async with served(address.url, max_message_bytes=50_000, timeout=60) as servers:
            await servers.tools("test")
            with pytest.raises(ToolServerUnavailable):
                await servers.run("test", "flood", b"{}", 60)
            assert await servers.run("test", "add", b'{"a": 1, "b": 2}', 60) == ("3", False)

    asyncio.run(main())


def test_another_origin_is_not_asked(address: Address) -> None:
    with Address() as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        address.elsewhere = other.url

        async def main() -> None:
            async with served(address.url, headers={"Authorization": SECRET}) as servers:
                with pytest.raises(ToolServerUnavailable):
                    await servers.tools("test")

        asyncio.run(main())
        other.shutdown()
        thread.join()
    assert other.headers == []


def test_an_address_where_nothing_listens_says_so(address: Address) -> None:
    async def main() -> None:
        async with served("http://127.0.0.1:9/mcp") as servers:
            with pytest.raises(ToolServerUnavailable, match="tool server test: ConnectError"):
                await servers.tools("test")

    asyncio.run(main())
