"""Answers whose tool calls the server itself runs on MCP tool servers, for all APIs: `find_tools` asks the tool servers
for their tools, and `generate_with_tools` starts the answer, a `ToolLoop`. Read `ToolLoop.pieces` from top to bottom.

An answer consists of rounds. Each round is a generation like any other, and its prompt continues that of the previous
round. A round that calls only tools of tool servers is followed by their results and another round. A round that calls
other tools, or tools that the client has to approve, ends the answer, and the client continues.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from genai_server.answer_parts import (
    Part,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    WholeAnswer,
    WholeToolCall,
)
from genai_server.errors import PromptTooLong, QueueFull, SessionTerminated, quoted
from genai_server.generation.answers import Answer, Ending, Generation, Piece
from genai_server.generation.catalog import ChosenModel
from genai_server.generation.dependencies import RequestContext, Services
from genai_server.generation.generate import generate
from genai_server.generation.parameters.chat_messages import ChatMessage, ChatParameters, Tool
from genai_server.http.api_keys import ADMIN_KEY_NAME
from genai_server.http.telemetry.request_record import Usage
from genai_server.messages.admin import RequestPhase, RequestState
from genai_server.messages.generation_request import FinishReason
from genai_server.messages.supervisor_protocol import ServerAddress, ToolInfo, ToolOutput, ToolRequest
from genai_server.model_files.pooling_model import Task
from genai_server.system.addresses import is_at
from genai_server.text.prompts.prompt import CONTINUE
from genai_server.timing import Timings

Chat = TypeVar("Chat", bound=ChatParameters)
T = TypeVar("T")

# Between the name of a server and that of its tool.
_BETWEEN = "__"
# The limits of an answer's tokens, of which at most one is given.
_LIMITS = ("max_tokens", "max_completion_tokens")
_TOO_MANY_CALLS = "the call was not run: the limit of tool calls is reached"
# Headers that belong to the connection, to the protocol, or say what host is asked.
_OWN_HEADERS = frozenset(
    ("accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host")
    + ("keep-alive", "last-event-id", "mcp-protocol-version", "mcp-session-id", "te", "trailer", "transfer-encoding")
    + ("upgrade",)
)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,100}")
_NO_TOKENS = Usage(0)
# Precedes a result that is an error, for the model.
_ERROR = "Error: "


@dataclass(frozen=True)
class ServedTool:
    """A tool of a tool server, with what applies to its use in one request, such as whether the client must approve its
    calls. The operator has configured the tool server, or permits the request to name it by its URL. `find_tools`
    creates it.
    """

    server: str
    info: ToolInfo
    # Whether the client has to approve each call.
    needs_approval: bool = False
    # Where the server is, if the request has named it by its URL.
    address: ServerAddress | None = None

    @property
    def name(self) -> str:
        """The name by which the model calls the tool, made of the names of its server and the tool.

        A function that the client defines may have the same name and then replaces the tool; see `with_tools`.
        """
        return function_name(self.server, self.info.name)

    @property
    def function(self) -> dict[str, Any]:
        """The tool as a function that the model can call, in OpenAI's format: name, description and JSON schema of the
        parameters.
        """
        description = {"description": self.info.description} if self.info.description else {}
        return {"name": self.name, **description, "parameters": json.loads(self.info.parameters)}


@dataclass(frozen=True)
class ServedTools:
    """The tools that the server runs for one request, keyed by their names in prompts, and which of their calls the
    client has approved. `served_tools` creates it; NO_TOOLS has none.
    """

    tools: Mapping[str, ServedTool] = field(default_factory=dict)
    # Ids of the calls in the conversation that the client has approved.
    approved: frozenset[str] = frozenset()
    # Results of approved calls, by function and arguments: a request whose prompt is too long begins several times.
    results: dict[tuple[str, str], ToolOutput] = field(default_factory=dict)

    def of(self, call_id: str, name: str) -> ServedTool | None:
        """Return the tool that the call with the id `call_id` and the function name `name` calls, if the server runs
        this call; otherwise None. The server does not run calls that the client still has to approve.
        """
        tool = self.tools.get(name)
        return None if tool is None or (tool.needs_approval and call_id not in self.approved) else tool


NO_TOOLS = ServedTools()


def function_name(server: str, tool: str) -> str:
    """Return the name by which models call the tool `tool` of the tool server `server`."""
    return f"{server}{_BETWEEN}{tool}"


@dataclass(frozen=True)
class Selection:
    """What a request wants of one tool server: which of its tools the model may call, and for which the client wants to
    approve each call. Routes create it from the body for `find_tools`.
    """

    server: str
    allows: Callable[[ToolInfo], bool] = lambda tool: True
    # Whether the client wants to approve the calls of a tool. The operator may demand it for others.
    wants_approval: Callable[[ToolInfo], bool] = lambda tool: False
    # Where the server is; None for the operator's of this name.
    address: ServerAddress | None = None


def usable_servers(services: Services, context: RequestContext) -> list[str]:
    """Return the names of the operator's tool servers that a request may use with its API key."""
    key = context.record.key_name
    servers = services.tools.servers.values()
    return [server.name for server in servers if server.may_be_used_by(key, is_admin=key == ADMIN_KEY_NAME)]


def address_of(
    services: Services, url: str | None, token: str | None, headers: Mapping[str, str] | None = None
) -> ServerAddress | None:
    """Return the address of the tool server at `url`, a URL in a request, with the headers to send to it; None without
    a URL, or if the operator does not allow its host (GENAI_MCP_HOSTS).

    `token` is an OAuth token for the server, and `headers` are further headers that the request sets. Raises ValueError
    for headers that a request may not set.
    """
    if not url or not is_at(url, services.settings.allowed_mcp_hosts):
        return None
    sent_headers = {name.lower(): value for name, value in (headers or {}).items()}
    sent_headers |= {"authorization": f"Bearer {token}"} if token else {}
    for name, value in sent_headers.items():
        if name in _OWN_HEADERS or not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"must not have {quoted(name)}")
        if not (value.isascii() and value.isprintable()):
            raise ValueError("must be of printable ASCII characters")
    return ServerAddress(url, sent_headers)


async def find_tools(
    services: Services, context: RequestContext, model: str | None, selected: Sequence[Selection]
) -> list[ServedTool]:
    """Ask tool servers for their tools, and return those that `selected` allows. `model` is the id of the model that
    the request names. Tool servers that do not run yet are started.

    Raises ModelNotFound, TaskUnsupported, ToolServerUnavailable, ClientLeft and DeadlinePassed, and SessionTerminated
    or RequestCancelled if an operator ends the request.
    """
    chosen = services.models.choose_for(model, Task.GENERATE)
    ended_for: list[FinishReason] = []
    ended = asyncio.Event()

    def end(reason: FinishReason) -> None:
        ended_for.append(reason)
        ended.set()

    client, tenant = services.tools.client, context.tenant
    listing = asyncio.gather(
        *(client.tools(selection.server, selection.address, tenant=tenant) for selection in selected)
    )

    async def listed() -> list[list[ToolInfo]]:
        return await listing

    handle = client.hold(_described(context, chosen), end)
    try:
        tool_lists = await context.run_in_time(_run_unless_set(ended, listed))
    finally:
        client.release(handle)
    if tool_lists is None:
        context.deadline.require_end(ended_for[0])
    assert tool_lists is not None
    return [
        ServedTool(
            selection.server,
            info,
            selection.wants_approval(info)
            or (selection.address is None and services.tools.servers[selection.server].needs_approval(info.name)),
            selection.address,
        )
        for selection, infos in zip(selected, tool_lists, strict=True)
        for info in infos
        if selection.allows(info)
    ]


def _described(context: RequestContext, model: ChosenModel, usage: Usage = _NO_TOKENS) -> ToolRequest:
    """Describe a request while tools run or are listed for it, so that operators see it in the list of requests
    although no engine has it.

    `usage` has the tokens that the request has used up to now.
    """
    record, adapter = context.record, model.adapter
    state = RequestState(
        record.request_id,
        RequestPhase.TOOLS,
        record.arrival.elapsed,
        usage.prompt,
        usage.cached,
        usage.completion,
        None if adapter is None else adapter.name,
        record.unique_id,
        context.low_priority,
        record.key_name,
    )
    return ToolRequest(state, model.about.name, record.device)


async def _run_unless_set(ended: asyncio.Event, work: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    """Run the coroutine that `work` returns, and return its result. If the event `ended` is set first, cancel the
    coroutine and return None.
    """
    working = asyncio.ensure_future(work())
    ending = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        ending.cancel()


def with_tools(chat: Chat, tools: Iterable[ServedTool]) -> Chat:
    """Return a copy of a chat whose answer may also call `tools`. Where the chat has a function with the name of a
    tool, the function replaces the tool.
    """
    own_names = {tool.function.name for tool in chat.tools or ()}
    more = [
        Tool.model_validate({"type": "function", "function": tool.function})
        for tool in tools
        if tool.name not in own_names
    ]
    listed = list(chat.listed_tools)
    both = chat.model_copy(update={"tools": [*(chat.tools or ()), *more] or None})
    if listed != (chat.tools or []):
        both.list_tools([*listed, *more])
    return both


def served_tools(tools: Iterable[ServedTool], chat: ChatParameters, approved: Iterable[str] = ()) -> ServedTools:
    """Collect the tools that the server runs for a chat: all of `tools` except those that have the name of a function
    in the chat, which the client runs.

    `approved` are the ids of tool calls in the conversation that the client has approved.
    """
    own_names = {tool.function.name for tool in chat.tools or ()}
    return ServedTools({tool.name: tool for tool in tools if tool.name not in own_names}, frozenset(approved))


def unanswered(messages: Sequence[ChatMessage]) -> list[str]:
    """Return the ids of the tool calls that end a conversation and for which it has no result yet; empty if it ends
    otherwise.
    """
    results: set[str | None] = set()
    for message in reversed(messages):
        if message.role != "tool":
            calls = message.tool_calls or []
            return [call.id for call in calls if call.id not in results]
        results.add(message.tool_call_id)
    return []


async def generate_with_tools(
    services: Services,
    chat: ChatParameters,
    context: RequestContext,
    tools: ServedTools,
    *,
    is_streamed: bool = False,
    only_complete_calls: bool = False,
    max_calls: int | None = None,
) -> Generation:
    """Start the one answer to a chat, and return a generation with this answer. The calls in the conversation that the
    client has approved are run first.

    The server runs calls of `tools`, at most `max_calls` in the whole answer (None for any number), and continues the
    answer with their results. When this function returns, the engine has accepted the first round. `is_streamed` says
    whether the answer is sent piece by piece; with `only_complete_calls`, tool calls that the model did not complete
    are left out. The data of images and audio in messages is kept. Raises RequestError, Unavailable, and ClientLeft as
    soon as the client has disconnected.
    """
    loop = ToolLoop(services, chat, context, tools, max_calls=max_calls)
    return await loop.begin(is_streamed=is_streamed, only_complete_calls=only_complete_calls)


class ToolLoop(Answer):
    """An answer that consists of several rounds of generation, between which the server runs tools. Responses are built
    from it as from any other answer. `generate_with_tools` creates it; `begin` starts the first round, and reading
    `pieces` runs the tools and the further rounds. The caller must close it.
    """

    def __init__(
        self,
        services: Services,
        chat: ChatParameters,
        context: RequestContext,
        tools: ServedTools,
        *,
        max_calls: int | None = None,
    ) -> None:
        self._services = services
        self._chat = chat
        self._context = context
        self._tools = tools
        self._calls_left = max_calls
        self._rounds_left = services.settings.max_tool_rounds
        # What came before the first round: approved calls and their results.
        self._before: list[Part] = []
        self._num_before = 0
        # The answer of the current round, that of the first round, and the tokens of all earlier rounds.
        self._round: Answer
        self._first: Answer
        self._spent = Usage(0)
        # Why no further round follows; None if the last one ended it.
        self._reason: FinishReason | None = None
        self._stopped = asyncio.Event()
        # Whether the first round has begun.
        self._has_begun = False
        # The number by which operators find it; see `ToolServerClient.hold`.
        self._held: int

    async def begin(self, *, is_streamed: bool, only_complete_calls: bool) -> Generation:
        """Run the calls that the client has approved, and start the first round. Return a generation whose only answer
        is this ToolLoop. If the chat has no tools that the server runs, the generation is an ordinary one.

        `is_streamed` says whether the answer is sent piece by piece; with `only_complete_calls`, tool calls that the
        model did not complete are left out. Raises the errors of `generate_with_tools`.
        """
        self._is_streamed, self._only_complete_calls = is_streamed, only_complete_calls
        if not self._tools.tools:
            return await self._generate(self._chat)
        self._model = self._services.models.choose_for(self._chat.model, Task.GENERATE)
        self._held = self._services.tools.client.hold(_described(self._context, self._model), self._end_for)
        try:
            if self._tools.approved:
                await self._context.run_while_connected(_run_unless_set(self._stopped, self._run_approved))
            generation = await _run_unless_set(self._stopped, lambda: self._generate(self._chat))
            if generation is None:
                self._context.deadline.require_end(self._reason)
            assert generation is not None
        except BaseException:
            self._services.tools.client.release(self._held)
            raise
        (self._round,) = generation.answers
        self._first = self._round
        self._has_begun = True
        self._context.record.answers = [self]
        if self._stopped.is_set():  # just now
            self._round.end()
        return replace(generation, answers=[self])

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the pieces of all rounds as they arrive, with the results of tools between the rounds. Tool calls are
        numbered through all rounds. May be called only once.
        """
        if self._before:
            yield Piece(self._before, [])
        num_calls = self._num_before
        while True:
            # One round, as it arrives.
            answer = WholeAnswer()
            async for piece in self._round.pieces():
                for part in piece.parts:
                    answer.add(part)
                yield replace_indexes(piece, num_calls) if num_calls else piece
            calls = answer.tool_calls
            if self._stopped.is_set() or not self._round.ending.calls_tools:
                return

            # Its calls that the server runs. The client runs, or approves, the others.
            self._services.tools.client.update(self._held, _described(self._context, self._model, self.usage))
            served_calls = [index for index, call in enumerate(calls) if self._tools.of(call.id, call.name) is not None]
            results: dict[int, ToolOutput] = {}
            async for index, result in self._run([(index, calls[index]) for index in served_calls]):
                results[index] = result
                yield Piece([ToolResult(num_calls + index, result.text, result.is_error)], [])
            if len(results) < len(calls) or self._stopped.is_set():
                return

            # The next round.
            num_calls += len(calls)
            if not await self._continue(answer, [results[index] for index in range(len(calls))]):
                return

    @property
    def ending(self) -> Ending:
        if self._reason is not None:
            return Ending(self._reason)
        ending = self._round.ending
        return replace(ending, calls_tools=False) if self._stopped.is_set() else ending

    @property
    def outcome(self) -> str:
        return self._round.outcome if self._reason is None else self._reason.value

    @property
    def usage(self) -> Usage:
        """The token counts of all rounds so far, added up."""
        return self._spent + self._round.usage

    @property
    def num_unread(self) -> int:
        return self._round.num_unread

    @property
    def num_profiled(self) -> int:
        return self._round.num_profiled

    def timings(self) -> Timings:
        """Return the timings of the first round, which stand for those of the answer."""
        return self._first.timings()

    def end(self) -> None:
        self._stopped.set()
        self._round.end()

    def close(self) -> None:
        self._services.tools.client.release(self._held)
        self._stopped.set()
        self._round.close()

    def _end_for(self, reason: FinishReason) -> None:
        """End the answer because an operator demands it, whether it is being generated or waits for a tool. `reason`
        becomes the finish reason, unless the answer has another one already.
        """
        self._reason = self._reason or reason
        self._stopped.set()
        if self._has_begun:
            self._round.end()

    async def _generate(self, chat: ChatParameters, *, while_connected: bool = True) -> Generation:
        """Start the generation of one round with `chat`, which has the conversation up to this round. If
        `while_connected` is False, the client's disconnection is not watched for.
        """
        return await generate(
            self._services,
            chat,
            self._context,
            is_streamed=self._is_streamed,
            keeps_media=True,
            only_complete_calls=self._only_complete_calls,
            while_connected=while_connected,
        )

    async def _run(self, calls: Sequence[tuple[int, WholeToolCall]]) -> AsyncIterator[tuple[int, ToolOutput]]:
        """Run `calls`, pairs of an index and a tool call, at the same time. Yield the results in the order of the
        calls, each with the index of its call, until the answer ends or its deadline passes; calls that still run then
        are cancelled.
        """
        running = [asyncio.create_task(self._result(call)) for _, call in calls]
        stopping = asyncio.create_task(self._stopped.wait())
        try:
            for (index, _), task in zip(calls, running, strict=True):
                seconds = self._context.deadline.seconds_left
                await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED, timeout=seconds)
                if not task.done():
                    if not self._stopped.is_set():
                        self._reason = FinishReason.TIMEOUT
                    return
                yield index, task.result()
        finally:
            stopping.cancel()
            for task in running:
                task.cancel()

    async def _result(self, call: WholeToolCall) -> ToolOutput:
        if self._calls_left is not None:
            self._calls_left -= 1
            if self._calls_left < 0:
                return ToolOutput(0, _TOO_MANY_CALLS, is_error=True)
        tool = self._tools.tools[call.name]
        return await self._services.tools.client.run(
            tool.server,
            tool.info.name,
            (call.arguments or "{}").encode(),
            self._context.deadline.seconds_left,
            tool.address,
            tenant=self._context.tenant,
        )

    async def _run_approved(self) -> None:
        """Run the calls in the conversation that the client has approved, and add their results to the conversation,
        each group after the tool results that follow its message. Calls and results are kept as the first piece of the
        answer.
        """
        messages: list[ChatMessage] = []
        pending: list[ChatMessage] = []
        for message in self._chat.messages:
            if message.role != "tool":
                messages += pending
                pending = []
            messages.append(message)
            for tool_call in message.tool_calls or ():
                tool = self._tools.of(tool_call.id, tool_call.function.name)
                if tool_call.id not in self._tools.approved or tool is None:
                    continue
                call = WholeToolCall(
                    tool_call.id, tool_call.function.name, tool_call.function.arguments, is_complete=True
                )
                result = await self._approved_result(call)
                pending.append(_result_message(call, result))
                self._before += [
                    ToolCallStart(self._num_before, call.id, call.name),
                    ToolCallArguments(self._num_before, call.arguments),
                    ToolCallEnd(self._num_before, is_complete=True),
                    ToolResult(self._num_before, result.text, result.is_error),
                ]
                self._num_before += 1
        self._chat = self._chat.model_copy(update={"messages": [*messages, *pending]})

    async def _approved_result(self, call: WholeToolCall) -> ToolOutput:
        key = call.name, call.arguments
        if key not in self._tools.results:
            try:
                is_object = isinstance(json.loads(call.arguments or "{}"), dict)
            except ValueError:
                is_object = False
            wrong = ToolOutput(0, "the call's arguments are no JSON object", is_error=True)
            self._tools.results[key] = await self._result(call) if is_object else wrong
        return self._tools.results[key]

    async def _continue(self, answer: WholeAnswer, results: Sequence[ToolOutput]) -> bool:
        """Start the next round, whose prompt ends with `results`, the results of all tool calls in `answer`, the answer
        of the last round. While the engine's queue is full, wait and try again.

        Returns whether a round has been started. If no round can follow, records why the answer ends: no tokens are
        left, the prompt is too long, the deadline has passed, or the answer has been ended. Raises the other errors of
        `generate`.
        """
        self._rounds_left -= 1
        chat = self._next_chat(answer, results)
        if chat is None:
            self._reason = FinishReason.LENGTH
            return False
        while True:
            try:
                generation = await _run_unless_set(self._stopped, lambda: self._generate(chat, while_connected=False))
                break
            except PromptTooLong:
                self._reason = FinishReason.LENGTH
                return False
            except SessionTerminated:
                self._reason = FinishReason.TERMINATED
                return False
            except QueueFull as error:
                seconds = self._context.deadline.seconds_left
                if not seconds:
                    self._reason = FinishReason.TIMEOUT
                    return False
                pause = min(error.retry_after or 1, seconds)
                await _run_unless_set(self._stopped, partial(asyncio.sleep, pause))
        if generation is None:
            return False
        self._spent += self._round.usage
        self._chat = chat
        (self._round,) = generation.answers
        self._context.record.answers = [self]
        if self._stopped.is_set():  # just now
            self._round.end()
        return True

    def _next_chat(self, answer: WholeAnswer, results: Sequence[ToolOutput]) -> ChatParameters | None:
        """Return the chat of the next round: the conversation, followed by `answer`, the answer of the last round, and
        `results`, the results of its tool calls. None if the token limits of the whole answer leave no tokens for
        another round.

        In the last round that is allowed, the model may no longer call tools of the server.
        """
        calls = answer.tool_calls
        called = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments or "{}"}} for call in calls
        ]
        turn = {"role": "assistant", "content": answer.content or None, "tool_calls": called}
        if answer.reasoning:
            turn["reasoning_content"] = answer.reasoning
        more = [_result_message(call, result) for call, result in zip(calls, results, strict=True)]
        kwargs = {name: value for name, value in (self._chat.chat_template_kwargs or {}).items() if name != CONTINUE}
        changed: dict[str, Any] = {
            "messages": [*self._chat.messages, ChatMessage.model_validate(turn), *more],
            "chat_template_kwargs": kwargs or None,
        }
        if self._chat.tool_choice not in (None, "auto"):  # what had to be called has been called
            changed["tool_choice"] = "auto"
        for name in _LIMITS:
            if (limit := getattr(self._chat, name)) is not None:
                changed[name] = limit - self._round.usage.completion
                if changed[name] < 1:
                    return None
        chat = self._chat.model_copy(update=changed)
        if self._rounds_left < 1 or (self._calls_left is not None and self._calls_left < 1):
            # The prompt keeps the tools, and with them its cached prefix.
            listed = list(chat.listed_tools)
            client_tools = [tool for tool in chat.tools or () if tool.function.name not in self._tools.tools]
            chat = chat.model_copy(update={"tools": client_tools or None, "tool_choice": None})
            chat.list_tools(listed)
        return chat


def _result_message(call: WholeToolCall, result: ToolOutput) -> ChatMessage:
    text = f"{_ERROR}{result.text}" if result.is_error else result.text
    return ChatMessage.model_validate({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})


def replace_indexes(piece: Piece, offset: int) -> Piece:
    """Return a copy of a piece in which the indexes of tool calls are increased by `offset`, the number of calls in
    earlier rounds, so that calls are numbered through the whole answer.
    """
    parts = [
        replace(part, index=part.index + offset)
        if isinstance(part, ToolCallStart | ToolCallArguments | ToolCallEnd)
        else part
        for part in piece.parts
    ]
    return Piece(parts, piece.tokens, piece.progress)
