"""A connection to one tool server, from its start to its end: lists the server's tools and calls them."""

import asyncio
import json
import logging
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import mcp_types as types
from mcp import Client
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from genai_server import __version__
from genai_server.config.tool_servers import ToolServer
from genai_server.errors import ToolServerUnavailable, escaped, in_one_line, quoted
from genai_server.messages.supervisor_protocol import ToolInfo
from genai_server.tool_servers.transports import Program, connect_by_http, without_secrets


class CallSlots:
    """Allows `number` concurrent calls; further calls wait. A tenant is an API key; requests without a key are one
    tenant.

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
        """Wait until a call of the tenant may run, and count it as running during the block."""
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
            able = [
                each for each in self._waiting if not each[1].done() and self._running[each[0]] < self._max_per_tenant
            ]
            if not able:
                return
            chosen = min(able, key=lambda each: self._running[each[0]])
            self._waiting.remove(chosen)
            self._num_free -= 1
            self._running[chosen[0]] += 1
            chosen[1].set_result(None)


log = logging.getLogger(__name__)
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
    """The connection to one tool server, which it starts or connects to in a task. The caller must close it."""

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
        """Whether the server is starting or running and accepts calls."""
        return not self._is_retired and not self._task.done()

    @property
    def has_ended(self) -> bool:
        """Whether the connection's task has ended. A tool server that was started as a program has then ended, too."""
        return self._task.done()

    async def tools(self) -> list[ToolInfo]:
        """Wait until the server has started, and return the tools that requests may use.

        Raises ToolServerUnavailable.
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
        """Run a tool with `arguments`, which are JSON, for at most `seconds`. Returns the tool's output, and whether
        the output is an error. Raises ToolServerUnavailable if the tool cannot be run.

        If the server does not answer in time, or before the caller is cancelled, it may be stuck. It then gets no more
        calls, and is ended when its running calls have ended. This does not happen if the call was still waiting for
        other calls.
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
        """Accept no more calls, and end the server when its running calls have ended."""
        self._is_retired = True
        self._close_unless_used()

    async def close(self) -> None:
        """End the server at once. Running calls fail."""
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
        """Wait until the connection is closed or the server's program has ended."""
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
        """Handle a notification from the server (called by the MCP SDK)."""
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
        """Return the output of a tool in the form that the model reads: secrets are replaced, and text beyond the
        maximum size is cut off.
        """
        data = without_secrets(text, self._server).encode(errors="replace")
        limit = self._server.max_output_bytes
        if len(data) <= limit:
            return data.decode()
        beginning = data[:limit].decode(errors="ignore")
        return f"{beginning}\n[{len(data) - limit} bytes left out: an output may have {limit} bytes (max_output_bytes)]"


def _text_of(result: types.CallToolResult) -> str:
    """Return the text of a tool's result that the model reads. Content other than text is replaced by a note."""
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
