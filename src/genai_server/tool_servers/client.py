"""The tool servers (MCP) as an API process uses them. They run in the supervisor's process (the process that starts
engines); `ToolServerClient` calls them over the connection to the supervisor.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

from genai_server.config.tool_servers import ToolServer
from genai_server.errors import ToolServerUnavailable
from genai_server.messages.generation_request import FinishReason
from genai_server.messages.supervisor_protocol import (
    EndRequest,
    FindRequests,
    FromToolServers,
    HoldRequest,
    ListTools,
    MatchingRequests,
    ReleaseRequest,
    RunTool,
    ServerAddress,
    StopTool,
    ToolInfo,
    ToolList,
    ToolOutput,
    ToolRequest,
    ToolServerFailed,
    ToToolServers,
)

_GONE = "the supervisor, which has the tool servers, cannot be reached"


class ToolServerClient:
    """Lists and calls the tools of tool servers (MCP) for an API process: sends messages to the supervisor, which runs
    the tool servers, with the function `send`, and receives the answers. The SupervisorClient creates it. Only the
    event loop may use it.
    """

    def __init__(self, send: Callable[[ToToolServers], bool]) -> None:
        # Returns False if the supervisor cannot be reached.
        self._send = send
        self._ids = count()
        self._waiting: dict[int, asyncio.Future[FromToolServers]] = {}
        # What ends the requests that the supervisor knows.
        self._held: dict[int, Callable[[FinishReason], None]] = {}

    async def tools(self, server: str, address: ServerAddress | None = None, *, tenant: str = "") -> list[ToolInfo]:
        """Return those tools of the tool server `server` that requests may use. Raises ToolServerUnavailable if the
        server cannot be started or reached.

        `address` is given for a server that a request names by URL, instead of one in the configuration file; its host
        must be allowed. `tenant` (an API key) has connections of its own to such a server.
        """
        answer = await self._ask(ListTools(next(self._ids), server, address, tenant))
        if isinstance(answer, ToolList):
            return answer.tools
        assert isinstance(answer, ToolServerFailed)
        raise ToolServerUnavailable(answer.reason)

    async def run(
        self,
        server: str,
        tool: str,
        arguments: bytes,
        seconds: float,
        address: ServerAddress | None = None,
        *,
        tenant: str,
    ) -> ToolOutput:
        """Call the tool `tool` of a tool server and return its output, or the reason of a failure as a ToolOutput with
        `is_error`. Cancelling the caller stops the tool.

        `arguments` is a JSON object as text, and `seconds` the timeout. `address` is given for a server that a request
        names by URL. `tenant` is the API key; tenants share the calls that may run at once.
        """
        try:
            answer = await self._ask(RunTool(next(self._ids), server, tool, arguments, seconds, tenant, address))
        except ToolServerUnavailable as error:
            return ToolOutput(0, str(error), is_error=True)
        assert isinstance(answer, ToolOutput)
        return answer

    def hold(self, request: ToolRequest, end: Callable[[FinishReason], None]) -> int:
        """Register a request for which tools run, and which no engine knows at the moment. Operators can then find the
        request, and end it, which calls the function `end` with the reason.

        Returns the number of the registration for `update` and `release`. `release` must be called in the end.
        """
        id = next(self._ids)
        self._held[id] = end
        self._send(HoldRequest(id, request))
        return id

    def update(self, id: int, request: ToolRequest) -> None:
        """Replace the description of the request that `hold` has registered under the number `id`."""
        self._send(HoldRequest(id, request))

    def release(self, id: int) -> None:
        """Remove the request that `hold` has registered under the number `id`, because its tools no longer run."""
        if self._held.pop(id, None) is not None:
            self._send(ReleaseRequest(id))

    async def find(
        self,
        name: str | None = None,
        *,
        model_devices: list[tuple[str, str]] | None = None,
        end: FinishReason | None = None,
    ) -> list[ToolRequest]:
        """Return the requests for which tools run, in any API process, and which match the arguments. If `end` is
        given, these requests are ended for that reason.

        `name` is a request's unique id, or an id that several requests may have. `model_devices` has the pairs of model
        and device to which the requests must belong. None of either matches all. The result is empty if the supervisor
        cannot be reached.
        """
        try:
            answer = await self._ask(FindRequests(next(self._ids), name, model_devices, end))
        except ToolServerUnavailable:
            return []
        assert isinstance(answer, MatchingRequests)
        return answer.requests

    def receive(self, message: FromToolServers) -> None:
        """Handle a message from the supervisor: an answer to a call, or the end of a registered request."""
        if isinstance(message, EndRequest):
            if message.id in self._held:
                self._held[message.id](message.reason)
            return
        waiting = self._waiting.pop(message.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def lose(self, reason: str = "") -> None:
        """Handle the end of the connection to the supervisor: all waiting calls raise ToolServerUnavailable, with
        `reason` at the end of the message.
        """
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(ToolServerUnavailable(_GONE + reason))

    async def _ask(self, question: ListTools | RunTool | FindRequests) -> FromToolServers:
        answer: asyncio.Future[FromToolServers] = asyncio.get_running_loop().create_future()
        self._waiting[question.id] = answer
        if not self._send(question):
            del self._waiting[question.id]
            raise ToolServerUnavailable(_GONE)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._waiting.pop(question.id, None) is not None:
                self._send(StopTool(question.id))
            raise


@dataclass(frozen=True)
class Tools:
    """What an API process needs in order to offer tools to models: the tool servers (MCP) that the operator has
    configured, by name, and the client through which the process uses them.
    """

    servers: Mapping[str, ToolServer]
    client: ToolServerClient
