"""The tool servers (MCP) as an API process uses them: through its connection to the supervisor."""

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
    """The tool servers as an API process uses them: sends messages about tools to the supervisor with `send`, and
    receives the answers. For use in the event loop only.
    """

    def __init__(self, send: Callable[[ToToolServers], bool]) -> None:
        # Returns False if the supervisor cannot be reached.
        self._send = send
        self._ids = count()
        self._waiting: dict[int, asyncio.Future[FromToolServers]] = {}
        # What ends the requests that the supervisor knows.
        self._held: dict[int, Callable[[FinishReason], None]] = {}

    async def tools(self, server: str, address: ServerAddress | None = None, *, tenant: str = "") -> list[ToolInfo]:
        """Return the tools of a server that requests may use. Raises ToolServerUnavailable.

        `address` is given for a server that a request names by URL, not one of the configuration file; its host must be
        allowed. `tenant` (an API key) has connections of its own to such a server.
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
        """Run a tool and return its output, or the reason of a failure. Cancelling the caller stops the tool.

        `arguments` is JSON, `seconds` the timeout. `address` is given for a server that a request names by URL.
        """
        try:
            answer = await self._ask(RunTool(next(self._ids), server, tool, arguments, seconds, tenant, address))
        except ToolServerUnavailable as error:
            return ToolOutput(0, str(error), is_error=True)
        assert isinstance(answer, ToolOutput)
        return answer

    def hold(self, request: ToolRequest, end: Callable[[FinishReason], None]) -> int:
        """Register a request whose tools are running, and which no engine knows at the moment. Operators can then find
        it, and end it with the function `end`.

        Returns the number of the request for `update` and `release`. `release` must be called in the end.
        """
        id = next(self._ids)
        self._held[id] = end
        self._send(HoldRequest(id, request))
        return id

    def update(self, id: int, request: ToolRequest) -> None:
        """Replace the description of a request registered with `hold`."""
        self._send(HoldRequest(id, request))

    def release(self, id: int) -> None:
        """Remove a request registered with `hold`, because it has ended."""
        if self._held.pop(id, None) is not None:
            self._send(ReleaseRequest(id))

    async def find(
        self,
        name: str | None = None,
        *,
        model_devices: list[tuple[str, str]] | None = None,
        end: FinishReason | None = None,
    ) -> list[ToolRequest]:
        """Return those requests of all API processes that are registered with `hold` and match the arguments, which are
        the fields of FindRequests. If `end` is given, the requests are ended for this reason.

        Empty if the supervisor cannot be reached.
        """
        try:
            answer = await self._ask(FindRequests(next(self._ids), name, model_devices, end))
        except ToolServerUnavailable:
            return []
        assert isinstance(answer, MatchingRequests)
        return answer.requests

    def receive(self, message: FromToolServers) -> None:
        """Handle a message from the supervisor."""
        if isinstance(message, EndRequest):
            if message.id in self._held:
                self._held[message.id](message.reason)
            return
        waiting = self._waiting.pop(message.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def lose(self, reason: str = "") -> None:
        """Handle the end of the connection: all waiting calls raise ToolServerUnavailable, with `reason` at the end of
        its message.
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
    """What an API process needs in order to offer tools: the operator's tool servers, and the client through which it
    uses them.
    """

    servers: Mapping[str, ToolServer]
    client: ToolServerClient
