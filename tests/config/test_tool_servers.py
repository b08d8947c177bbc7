"""The tables [mcp.NAME] of the configuration file."""

from pathlib import Path

import pytest

from genai_server.config.settings import Settings
from genai_server.config.sources import load_settings
from genai_server.config.tool_servers import ToolServer, tool_servers
from genai_server.errors import ConfigurationError


def read(folder: Path, text: str, **environ: str) -> dict[str, ToolServer]:
    (folder / "server.toml").write_text(text, encoding="utf-8")
    return tool_servers(Settings.model_validate({"config": str(folder / "server.toml")}), environ)


def test_tables_are_read_and_name_variables(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        [mcp.time]
        command = ["mcp-server-time", "--local-timezone", "UTC"]
        env = { KEY = "${TOKEN}", PRICE = "$$5" }
        tools = ["now"]
        keys = ["alice"]
        timeout = 5

        [mcp.web-search]
        url = "https://example.com/mcp"
        headers = { Authorization = "Bearer ${TOKEN}" }
        approval = "always"
        """,
        TOKEN="long-secret",
    )
    time, search = found["time"], found["web-search"]
    assert time.env == {"KEY": "long-secret", "PRICE": "$5"}
    assert (time.may_run("now"), time.may_run("later"), time.needs_approval("now")) == (True, False, False)
    assert [time.may_be_used_by(key) for key in ("alice", "bob", "")] == [True, False, False]
    assert time.may_be_used_by("bob", is_admin=True)
    assert search.secrets == ["Bearer long-secret", "long-secret"]
    assert (search.needs_approval("x"), search.may_be_used_by("bob"), search.max_calls) == (True, True, 8)


def test_tables_are_no_settings_and_may_be_missing(tmp_path: Path) -> None:
    assert read(tmp_path, "port = 8080") == {}
    (tmp_path / "server.toml").write_text('port = 8080\n[mcp.time]\ncommand = ["x"]\n', encoding="utf-8")
    assert load_settings({"config": str(tmp_path / "server.toml")}, environ={}, dotenv=None).port == 8080


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mcp = 5", "[mcp]: expected a table for each server, not 5"),
        ("[mcp]\ntime = 5", "[mcp.time]: expected a table without a name, not 5"),
        ('[mcp."a b"]\ncommand = ["x"]', "[mcp.a b]: the name must have at most 40 letters"),
        ('[mcp.a__b]\ncommand = ["x"]', "[mcp.a__b]: the name must have at most 40 letters"),
        ('[mcp.a_]\ncommand = ["x"]', "[mcp.a_]: the name must have at most 40 letters"),
        ("[mcp.time]", "[mcp.time]: must have either command or url"),
        ('[mcp.time]\ncommand = ["x"]\nurl = "https://x"', "[mcp.time]: must have either command or url"),
        ('[mcp.time]\ncommand = ["x"]\nheaders = {}', "[mcp.time]: headers is only allowed with url"),
        ('[mcp.time]\nurl = "https://x"\nenv = {}', "[mcp.time]: env is only allowed with command"),
        ('[mcp.time]\ncommand = "x"', "[mcp.time] command: must be a list"),
        ("[mcp.time]\ncommand = []", "[mcp.time] command: must not be empty"),
        ('[mcp.time]\ncommand = ["x"]\ntimeout = 0', "[mcp.time] timeout: must be greater than 0"),
        ('[mcp.time]\ncommand = ["x"]\ntimeouts = 1', "[mcp.time] timeouts: unknown"),
        ('[mcp.time]\ncommand = ["x"]\napproval = [5]', "[mcp.time] approval: must be"),
        ('[mcp.time]\nurl = "file:///x"', "[mcp.time] url: must match ^https?://[!-~]+$"),
        (
            '[mcp.time]\ncommand = ["x"]\nenv = { A = "${NO}" }',
            "[mcp.time] env.A: names the variable NO, which is not set",
        ),
        ('[mcp.time]\ncommand = ["x"]\nenv = { A = "s3cret$" }', "[mcp.time] env.A: a $ must be part of"),
        ('[mcp.time]\ncommand = ["x"]\nenv = { A = 5 }', "[mcp.time] env.A: must be a string"),
    ],
)
def test_wrong_tables_say_what_is_wrong_and_show_no_secret(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, text)
    assert str(raised.value).startswith(message)
    assert "s3cret" not in str(raised.value)


def test_values_of_a_query_are_secrets() -> None:
    server = ToolServer.model_validate({"name": "x", "url": "https://example.com/mcp?key=long-secret&page=1"})
    assert server.secrets == ["long-secret"]


def test_hosts_are_a_list() -> None:
    assert Settings.model_validate({}).allowed_mcp_hosts == frozenset()
    chosen = Settings.model_validate({"mcp_hosts": "MCP.example.com, tools.example:8443"})
    assert chosen.allowed_mcp_hosts == {"mcp.example.com", "tools.example:8443"}
    with pytest.raises(ValueError, match="is not a host"):
        Settings.model_validate({"mcp_hosts": "https://mcp.example.com"})
