"""`genai-server mcp` with the client of the protocol's own package, over standard input and output."""

import json
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client

from tests.running_server import ROOT, RunningServer, clean_environment, environment_without, free_port, run_command
from tests.server_here import run_here

READING = {"status", "models", "running_requests", "ended_requests", "profiles", "profile_report"}
CHANGING = {"terminate", "profile_slow_token"}


pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected(*arguments: str, **settings: str) -> AsyncIterator[Client]:
    """A client of the command with these arguments."""
    command = ["-m", "genai_server", "mcp", *arguments]
    environment = clean_environment(**settings)
    parameters = StdioServerParameters(command=sys.executable, args=command, env=environment, cwd=ROOT)
    async with Client(stdio_client(parameters)) as client:
        yield client


async def result(client: Client, name: str, **arguments: Any) -> Any:
    """What a tool returns: an object, or a text."""
    answer = await client.call_tool(name, arguments)
    assert not answer.is_error, answer
    (content,) = answer.content
    assert content.type == "text"
    return json.loads(content.text) if content.text.startswith("{") else content.text


async def error(client: Client, name: str, **arguments: Any) -> str:
    """Why a tool failed."""
    answer = await client.call_tool(name, arguments)
    assert answer.is_error
    (content,) = answer.content
    assert content.type == "text"
    return str(content.text)


async def test_without_admin_an_agent_can_only_look(demo: RunningServer) -> None:
    demo.chat("What is the capital of France?")
    async with connected(demo.url) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == READING
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
        assert all(tool.description for tool in tools)
        status = await result(client, "status", seconds=0.1)
        assert "cpu     ready" in status["now"]
        assert "0 requests" in status["now"]
        assert status["health"]["status"] == "ok"
        assert (await result(client, "models"))["data"][0]["id"] == "demo"
        assert (await result(client, "running_requests"))["object"] == "list"
        assert (await result(client, "ended_requests"))["data"][0]["model"] == "demo"
        assert (await result(client, "ended_requests", last_seconds=0.000001))["data"] == []
        assert "terminate" in await error(client, "terminate", request_id="x")


async def test_an_operators_agent_ends_a_request(scripted: RunningServer) -> None:
    async with connected(scripted.url, "--allow-admin") as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == READING | CHANGING
        with scripted.stream("count 900; delay 0.02") as events:
            next(iter(events))
            running = (await result(client, "running_requests"))["data"]
            (mine,) = [each for each in running if each["id"] == events.response.headers["x-request-id"]]
            await result(client, "terminate", request_id=mine["unique_id"])
            last = json.loads([*events][-1])
        assert last["finish_reason"] == "terminated"
        assert "no request" in await error(client, "terminate", request_id="req-none")


async def test_an_operators_agent_profiles_tokens_and_reads_the_report(demo: RunningServer) -> None:
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            demo.chat("Count from 1 to 12.")

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        async with connected(demo.url, "--allow-admin") as client:
            found = await result(client, "profile_slow_token", tokens=3, seconds=60, at_once=True)
            assert found["session"]["state"] == "ended"
            assert found["session"]["files"] >= 3
            assert "operator" in found["report"]
            id = found["session"]["id"]
            assert id in {each["id"] for each in (await result(client, "profiles"))["data"]}
            assert id in await result(client, "profile_report", session=id)
            assert "no-such" in await error(client, "profile_report", session="no-such")
            assert "slow" in await error(client, "profile_report", slow=0)
    finally:
        done.set()
        asking.join()


@pytest.mark.slow
async def test_the_admin_key_is_taken_from_the_environment(tmp_path: Path) -> None:
    key = {"GENAI_ADMIN_API_KEY": "of-the-operator-0"}
    with run_here(tmp_path, settings={"GENAI_DEVICE": "scripted", **key}) as server:
        async with connected(server.url) as client:
            assert "403: the admin endpoints need GENAI_ADMIN_API_KEY" in await error(client, "running_requests")
        async with connected(server.url, **key) as client:
            assert (await result(client, "running_requests"))["data"] == []


async def test_a_server_that_does_not_run_is_an_error_of_the_tool() -> None:
    async with connected(HOST="127.0.0.1", PORT=str(free_port())) as client:
        assert "no server at http://127.0.0.1:" in await error(client, "status")


@pytest.mark.slow
def test_without_the_package_the_extra_is_named(tmp_path: Path) -> None:
    done = run_command("mcp", environment=environment_without("mcp", tmp_path))
    assert done.returncode == 2
    assert "needs the package mcp" in done.stderr
    assert "mcp" in done.stderr.partition("package mcp:")[2]


@pytest.mark.parametrize("url", ["127.0.0.1", "http://"])
def test_a_wrong_address_is_refused_at_once(url: str) -> None:
    done = run_command("mcp", url, environment=clean_environment())
    assert done.returncode == 1
    assert "is not the address of a server" in done.stderr
