"""Tool servers as the supervisor has them, also those that do harm: a program costs its call only."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from genai_server.config.tool_servers import ToolServer
from genai_server.errors import ToolServerUnavailable
from genai_server.tool_servers.servers import ToolServers
from tests.running_server import command_line
from tests.tool_server import PROMPT, TOOLS

pytestmark = pytest.mark.anyio
PROGRAM = [sys.executable, str(Path(__file__).parents[1] / "tool_server.py")]
SECRET = "s3cret-of-the-operator"
FOREVER = 60.0


@asynccontextmanager
async def served(mode: str = "", **fields: Any) -> AsyncIterator[ToolServers]:
    """Servers of which one, `test`, is the program in this mode."""
    server = ToolServer.model_validate({"name": "test", "command": [*PROGRAM, mode], **fields})
    servers = ToolServers({"test": server})
    try:
        yield servers
    finally:
        await servers.close()
        assert not programs()


@pytest.fixture
def killed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that hangs is killed at once when its connection is closed."""
    monkeypatch.setattr("genai_server.tool_servers.connection._GRACE", 0.1)


def programs() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if PROGRAM[1] in command_line(child)]


async def run(servers: ToolServers, tool: str, arguments: bytes = b"{}", seconds: float = FOREVER) -> tuple[str, bool]:
    return await servers.run("test", tool, arguments, seconds)


async def works(servers: ToolServers) -> bool:
    return await run(servers, "add", b'{"a": 1, "b": 2}') == ("3", False)


async def test_tools_are_listed_and_run_by_one_program() -> None:
    async with served() as servers:
        assert [tool.name for tool in await servers.tools("test")] == [*TOOLS]
        assert await works(servers)
        assert await run(servers, "echo", b'{"text": "\xc3\xa9"}') == ("é", False)
        assert await run(servers, "fail") == ("it did not work", True)
        assert await run(servers, "picture") == ("[image left out: the model reads the texts of tools only]", False)
        assert await run(servers, "count") == ("5", False)
        assert len(programs()) == 1


async def test_calls_at_once_all_return() -> None:
    async with served(max_calls=2) as servers:
        calls = [run(servers, "add", b'{"a": 1, "b": %d}' % number) for number in range(20)]
        assert await asyncio.gather(*calls) == [(str(1 + number), False) for number in range(20)]


async def test_only_allowed_tools_are_listed() -> None:
    async with served(tools=["add", "nothing"]) as servers:
        assert [tool.name for tool in await servers.tools("test")] == ["add"]


async def test_names_that_collide_and_huge_schemas_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    for mode, names, said in (
        ("names", [*TOOLS], "7 tools are left out"),
        ("schemas", [*TOOLS, "endless", "pattern"], "1 tools are left out"),
        ("pages", ["t0-0", "t0-1", "t0-2", "t0-3", "t1-0", "t1-1", "t1-2", "t1-3"], "56 tools are left out"),
    ):
        async with served(mode) as servers:
            assert [tool.name for tool in await servers.tools("test")] == names
        assert said in caplog.text


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("crash", "tool server test: it ended"),
        ("flood", "tool server test: it sent a message of more than 100000 bytes (max_message_bytes)"),
        ("spam", "tool server test: it sent too much without being asked"),
    ],
)
async def test_a_program_that_breaks_fails_its_call_and_starts_again(tool: str, said: str) -> None:
    async with served(max_message_bytes=100_000) as servers:
        assert await works(servers)
        with pytest.raises(ToolServerUnavailable) as raised:
            await run(servers, tool)
        assert str(raised.value) == said
        assert await works(servers)
        assert await run(servers, "count") == ("2", False)


@pytest.mark.usefixtures("killed_soon")
async def test_a_call_without_an_answer_ends_in_time_and_others_go_to_a_new_program() -> None:
    async with served() as servers:
        assert await works(servers)
        assert await run(servers, "hang", seconds=0.2) == ("the tool has not answered within 0.2 s", True)
        assert await works(servers)
        assert await run(servers, "count") == ("2", False)
        # Nor does a call hold up others that its client leaves.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await run(servers, "hang")
        assert await works(servers)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([*PROGRAM, "dies"], "it ended"),
        ([*PROGRAM, "mute"], "it does not list its tools within 0.5 s"),
        ([*PROGRAM, "deep"], "it sent a message that is nested too deep"),
        (["./no-such-program"], "tool server test: .*no-such-program"),
    ],
)
async def test_a_program_that_does_not_start_says_so(command: list[str], said: str) -> None:
    async with served(command=command, start_timeout=0.5 if "mute" in command else FOREVER) as servers:
        for _ in range(2):
            with pytest.raises(ToolServerUnavailable, match=said):
                await servers.tools("test")


async def test_outputs_are_cut_and_answers_that_break_the_protocol_are_errors() -> None:
    cut = "\n[998999 bytes left out: an output may have 1001 bytes (max_output_bytes)]"
    async with served(max_output_bytes=1001) as servers:
        assert await run(servers, "long") == ("é" * 500 + cut, False)
        assert await run(servers, "wrong") == ("the tool's answer does not follow the Model Context Protocol", True)
        assert await run(servers, "prompt") == (PROMPT, False)


async def test_neither_answers_nor_logs_have_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served("secret", env={"TOKEN": f"Bearer {SECRET}"}) as servers:
        text, _ = await run(servers, "secret")
        assert '"TOKEN": "[secret]"' in text
        assert SECRET not in text
        with pytest.raises(ToolServerUnavailable):
            await run(servers, "crash")
    async with served("dies", env={"TOKEN": SECRET}) as servers:
        with pytest.raises(ToolServerUnavailable):
            await servers.tools("test")
    assert "[secret]" in caplog.text
    assert "no start" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("mode", ["errors", "refusal", "schema"])
async def test_no_part_of_a_secret_is_left_where_texts_are_cut(caplog: pytest.LogCaptureFixture, mode: str) -> None:
    said: list[str] = []
    async with served(mode, env={"TOKEN": SECRET * 3}) as servers:
        try:
            tools = await servers.tools("test")
            said.extend(f"{tool.name} {tool.description} {tool.parameters.decode()}" for tool in tools)
        except ToolServerUnavailable as error:
            said.append(str(error))
    told = "\n".join([*said, caplog.text])
    assert SECRET[:6] not in told
    assert SECRET[-6:] not in told
    assert "xxx" in told
    if mode == "schema":
        assert 'leak [secret] {"type": "object", "title": "[secret]"}' in said


async def test_a_program_has_none_of_the_servers_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENAI_API_KEYS", "not-for-programs")
    async with served() as servers:
        text, _ = await run(servers, "secret")
        assert "not-for-programs" not in text
        assert '"PATH"' in text
