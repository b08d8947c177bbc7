"""The tool servers that the operator allows models to use, which speak MCP, the Model Context Protocol. `tool_servers`
reads them from the tables `[mcp.NAME]` of the configuration file, each of which has a program or a URL.
"""

import os
import re
import string
from collections.abc import Mapping
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from genai_server.config.settings import Settings
from genai_server.errors import ConfigurationError, quoted, rule_of
from genai_server.options import config_file

# The name is a part of the names of functions in prompts, which may have 128 characters. Two underscores stand between
# the names of a server and of a tool there, so that no tool has the name of one of another server.
_NAME = re.compile(r"(?!.*__)(?!.*_$)[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
NAME_RULE = "must have at most 40 letters, digits, dashes, and single underscores between these"
# Shorter values are no secrets, and may be a part of any text.
_MIN_SECRET = 8


class ToolServer(BaseModel):
    """The configuration of one tool server, from a table `[mcp.NAME]` of the configuration file: how to reach it, and
    which of its tools who may use. `tool_servers` creates it.

    Values of `env` and `headers` may refer to the server's environment variables in the file, as in `${TOKEN}`; here
    they are filled in.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str
    # The program and its arguments; it speaks MCP on its standard input and output.
    command: list[str] | None = Field(None, min_length=1)
    # The address of a server that speaks MCP by streamable HTTP.
    url: str | None = Field(None, pattern=r"^https?://[!-~]+$")
    # Variables that the program gets besides the usual ones, such as PATH and HOME.
    env: dict[str, str] = {}
    # The folder that the program runs in; by default the server's.
    folder: str | None = None
    # Headers of all requests to `url`.
    headers: dict[str, str] = {}
    # Whether `url` may lead to this machine or its networks.
    private: bool = False
    # The tools that requests may use; by default all.
    tools: list[str] | None = None
    # The tools of which each call has to be approved by the client.
    approval: Literal["never", "always"] | list[str] = "never"
    # The names of the API keys that may use it; by default all.
    keys: list[str] | None = None
    # What the page and the terminal say about it.
    description: str = ""
    # Seconds until it must have listed its tools after its start, and for one call.
    start_timeout: float = Field(60, gt=0, le=3600, strict=False)
    timeout: float = Field(60, gt=0, le=86400, strict=False)
    # Bytes of one message that the server sends, and of a call's output that the model reads; the rest is left out.
    max_message_bytes: int = Field(4 * 1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    max_output_bytes: int = Field(64 * 1024, ge=64, le=16 * 1024 * 1024)
    # Calls that run at once; others wait.
    max_calls: int = Field(8, ge=1, le=1024)

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("must have either command or url")
        wrong = ("env", "folder") if self.command is None else ("headers", "private")
        if misplaced := [field for field in wrong if field in self.model_fields_set]:
            raise ValueError(f"{misplaced[0]} is only allowed with {'command' if self.command is None else 'url'}")
        return self

    @property
    def secrets(self) -> list[str]:
        """Texts that must not appear in logs or answers, longest first: the values of environment variables, headers
        and parameters of the URL that are at least eight characters long.
        """
        in_url = [] if self.url is None else [value for _, value in parse_qsl(urlsplit(self.url).query)]
        values = [*self.env.values(), *self.headers.values(), *in_url]
        words = {word for value in values for word in (value, *value.split())}
        return sorted((word for word in words if len(word) >= _MIN_SECRET), key=len, reverse=True)

    def may_be_used_by(self, key_name: str, *, is_admin: bool = False) -> bool:
        """Whether requests with the API key named `key_name` may use the tool server. `key_name` is "" where no key is
        needed; `is_admin` says that the request has the admin key, which may use all.
        """
        return self.keys is None or is_admin or key_name in self.keys

    def may_run(self, tool: str) -> bool:
        """Whether requests may call the tool named `tool` of this server."""
        return self.tools is None or tool in self.tools

    def needs_approval(self, tool: str) -> bool:
        """Whether the client has to approve each call of the tool named `tool` before the server makes it."""
        return self.approval == "always" or (self.approval != "never" and tool in self.approval)


def is_name(text: str) -> bool:
    """Whether `text` may be the name of a tool server. The text NAME_RULE describes valid names for people."""
    return _NAME.fullmatch(text) is not None


def tool_servers(settings: Settings, environ: Mapping[str, str] = os.environ) -> dict[str, ToolServer]:
    """Return the tool servers that the configuration file defines, by name. References such as `${TOKEN}` are replaced
    by the variables in `environ`.

    Raises ConfigurationError for a wrong table; the message shows no value, since values may be secrets.
    """
    tables = config_file.read_file(settings.config).get("mcp", {})
    if not isinstance(tables, dict):
        raise ConfigurationError(f"[mcp]: expected a table for each server, not {quoted(tables)}")
    return {name: _tool_server(name, table, environ) for name, table in tables.items()}


def _tool_server(name: str, table: Any, environ: Mapping[str, str]) -> ToolServer:
    table_name = f"[mcp.{name}]"
    if not is_name(name):
        raise ConfigurationError(f"{table_name}: the name {NAME_RULE}")
    if not isinstance(table, dict) or "name" in table:
        raise ConfigurationError(f"{table_name}: expected a table without a name, not {quoted(table)}")
    filled = {
        key: {inner: _filled(value, f"{table_name} {key}.{inner}", environ) for inner, value in entry.items()}
        if key in ("env", "headers") and isinstance(entry, dict)
        else entry
        for key, entry in table.items()
    }
    try:
        return ToolServer.model_validate({**filled, "name": name})
    except ValidationError as error:
        finding = error.errors(include_url=False, include_input=False)[0]
        # If a field may be a word or a list, the rest of the location says which of the two was tried.
        depth = 2 if finding["loc"][:1] in (("env",), ("headers",)) else 1
        field = ".".join(map(str, finding["loc"][:depth]))
        rule = "unknown" if finding["type"] == "extra_forbidden" else rule_of(finding)
        raise ConfigurationError(f"{table_name} {field}: {rule}" if field else f"{table_name}: {rule}") from None


def _filled(value: Any, location: str, environ: Mapping[str, str]) -> Any:
    """Return a value of a tool server's table with references such as `${TOKEN}` replaced by the variables in
    `environ`; a value that is not text is returned unchanged. `location` says where the value is in the file, for error
    messages.

    Raises ConfigurationError for a variable that is not set, or a malformed reference.
    """
    if not isinstance(value, str):
        return value
    try:
        return string.Template(value).substitute(environ)
    except KeyError as error:
        raise ConfigurationError(f"{location}: names the variable {error.args[0]}, which is not set") from None
    except ValueError:
        raise ConfigurationError(
            f"{location}: a $ must be part of a variable's name, as in ${{TOKEN}}, or be $$"
        ) from None
