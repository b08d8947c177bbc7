"""Servers of the Model Context Protocol's own authors."""

import json
import sys
from importlib.util import find_spec

import pytest

from genai_server.config.tool_servers import ToolServer
from genai_server.tool_servers.servers import ToolServers


@pytest.mark.anyio
@pytest.mark.skipif(find_spec("mcp_server_time") is None, reason="mcp-server-time is not installed (the extra dev)")
async def test_the_server_of_times_lists_and_runs_its_tools() -> None:
    command = [sys.executable, "-m", "mcp_server_time"]
    servers = ToolServers({"time": ToolServer.model_validate({"name": "time", "command": command})})
    try:
        assert [tool.name for tool in await servers.tools("time")] == ["get_current_time", "convert_time"]
        given = {"source_timezone": "Europe/Oslo", "time": "12:00", "target_timezone": "UTC"}
        text, is_error = await servers.run("time", "convert_time", json.dumps(given).encode(), 60)
        assert not is_error
        assert json.loads(text)["source"]["timezone"] == "Europe/Oslo"
        _, is_error = await servers.run("time", "get_current_time", b'{"timezone": "Nowhere"}', 60)
        assert is_error
    finally:
        await servers.close()
