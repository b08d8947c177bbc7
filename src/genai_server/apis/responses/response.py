"""Builds a response of OpenAI's Responses API from the parts of an answer: its output items, the complete object, and
their stream events (https://platform.openai.com/docs/api-reference/responses-streaming).
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from genai_server.answer_parts import (
    Content,
    Part,
    ScoredToken,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
)
from genai_server.answer_parts import Reasoning as Thought
from genai_server.apis.chat_completions import logprobs, openai_reason
from genai_server.apis.responses import items
from genai_server.apis.responses.item_schemas import Status
from genai_server.apis.responses.tools import (
    CLIENT_TOOLS,
    ClientTool,
    CustomTool,
    FunctionTool,
    McpFunction,
    ResponseTool,
    TypedTool,
    parsed_arguments,
)
from genai_server.errors import GenaiServerError
from genai_server.generation.answers import Ending
from genai_server.generation.parameters.chat_messages import CustomText
from genai_server.http.json_response import JsonObject
from genai_server.http.telemetry.request_record import Usage

# Name of an event without the prefix "response.", and its fields except the item's position.
NamedEvent = tuple[str, JsonObject]


class OutputItem(ABC):
    """An output item of a running response. Its text arrives piece by piece; the methods `opening`, `more` and
    `closing` yield the stream events for it.
    """

    # The type of the item.
    type: str
    # Whether the stream has an event of the item from its beginning on.
    is_announced: ClassVar[bool] = True

    def __init__(self) -> None:
        self.id: str = items.new_item(self.type)["id"]
        self.status: Status = "in_progress"
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """The text received so far."""
        return "".join(self._texts)

    @property
    def is_shown(self) -> bool:
        """Whether the response includes the item. Some items are only included when they are complete."""
        return True

    @abstractmethod
    def to_json(self) -> JsonObject:
        """The item as JSON, in its current state."""

    def opening(self) -> Iterator[NamedEvent]:
        """The events with which the item begins."""
        yield "output_item.added", {"item": self.to_json()}

    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[NamedEvent]:
        """Add text, and yield its events. `tokens` are the tokens of the text if the request asks for log
        probabilities.
        """
        self._texts.append(text)
        yield from ()

    def closing(self) -> Iterator[NamedEvent]:
        """The events with which the item ends."""
        yield "output_item.done", {"item": self.to_json()}


class FunctionCall(OutputItem):
    """A function call. The text of the item is the call's arguments."""

    type = "function_call"

    def __init__(self, call_id: str, name: str, namespace: str | None = None) -> None:
        super().__init__()
        self._call_id = call_id
        self._name = name
        self._namespace = namespace

    def to_json(self) -> JsonObject:
        called = {"call_id": self._call_id, "name": self._name, "arguments": self.text, "namespace": self._namespace}
        return items.new_item(self.type, self.id, status=self.status, **called)

    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[NamedEvent]:
        self._texts.append(text)
        yield "function_call_arguments.delta", {"delta": text}

    def closing(self) -> Iterator[NamedEvent]:
        if self.status == "completed":
            yield "function_call_arguments.done", {"arguments": self.text}
        yield from super().closing()


class CustomCall(OutputItem):
    """A call of a custom tool. The model writes it as a function call whose only argument is the text for the tool.

    An incomplete call gets no events after its deltas, because a client could execute the beginning of a text.
    """

    type = "custom_tool_call"

    def __init__(self, call_id: str, name: str, namespace: str | None = None) -> None:
        super().__init__()
        self._call_id = call_id
        self._name = name
        self._namespace = namespace
        self._input = CustomText()

    @property
    def is_shown(self) -> bool:
        return self.status == "completed"

    def to_json(self) -> JsonObject:
        called = {"call_id": self._call_id, "name": self._name, "input": self._input.text, "namespace": self._namespace}
        return items.new_item(self.type, self.id, **called)

    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[NamedEvent]:
        yield from self._news(self._input.feed(text))

    def closing(self) -> Iterator[NamedEvent]:
        if not self.is_shown:
            return
        yield from self._news(self._input.finish())
        yield "custom_tool_call_input.done", {"input": self._input.text}
        yield from super().closing()

    def _news(self, text: str) -> Iterator[NamedEvent]:
        if text:
            yield "custom_tool_call_input.delta", {"delta": text}


class ClientToolCall(OutputItem):
    """A call of a tool that the API defines by its type. It is shown only when complete, because a part of a patch or
    command must not be executed.
    """

    is_announced = False

    def __init__(self, call_id: str, tool: ClientTool) -> None:
        self.type = tool.call
        super().__init__()
        self._call_id = call_id
        self._tool = tool

    @property
    def is_shown(self) -> bool:
        return self.status == "completed"

    def to_json(self) -> JsonObject:
        fields = self._tool.fields(parsed_arguments(self.text))
        return items.new_item(self.type, self.id, status=self.status, call_id=self._call_id, **fields)

    def opening(self) -> Iterator[NamedEvent]:
        yield from ()

    def closing(self) -> Iterator[NamedEvent]:
        if self.is_shown:
            yield "output_item.added", {"item": {**self.to_json(), "status": "in_progress"}}
            yield from super().closing()


class McpCall(OutputItem):
    """A tool call that the server runs. The arguments arrive piece by piece, the result as a whole."""

    type = "mcp_call"

    def __init__(self, server: str, name: str, approval_request_id: str | None) -> None:
        super().__init__()
        self._server = server
        self._name = name
        self._approval_request_id = approval_request_id
        # The result, and whether it is an error; None before.
        self._result: tuple[str, bool] | None = None

    def to_json(self) -> JsonObject:
        output = error = None
        status: str = self.status
        if self._result is not None:
            text, is_error = self._result
            if is_error:
                status, error = "failed", tool_error(text)
            else:
                output = text
        return {
            "id": self.id,
            "type": self.type,
            "status": status,
            "approval_request_id": self._approval_request_id,
            "arguments": self.text,
            "error": error,
            "name": self._name,
            "output": output,
            "server_label": self._server,
        }

    def opening(self) -> Iterator[NamedEvent]:
        yield from super().opening()
        yield "mcp_call.in_progress", {}

    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[NamedEvent]:
        self._texts.append(text)
        yield "mcp_call_arguments.delta", {"delta": text}

    def called(self) -> Iterator[NamedEvent]:
        """The event that all arguments of the call have arrived, before the tool runs."""
        yield "mcp_call_arguments.done", {"arguments": self.text}

    def end(self, text: str, *, is_error: bool) -> Iterator[NamedEvent]:
        """Add the tool's result, whose text is `text`, and yield the last events. `is_error` says that the tool has
        failed.
        """
        self._result, self.status = (text, is_error), "completed"
        yield "mcp_call.failed" if is_error else "mcp_call.completed", {}
        yield from self.closing()


def tool_error(text: str) -> JsonObject:
    """The field `error` of a call whose tool has failed with this text."""
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}


class McpApprovalRequest(OutputItem):
    """An item `mcp_approval_request`: a call of a tool server's tool that the client has to approve before the server
    runs it.

    It is shown only when the model has written it completely, since a part of a call cannot be approved.
    """

    type = "mcp_approval_request"
    is_announced = False

    def __init__(self, server: str, name: str) -> None:
        super().__init__()
        self._server = server
        self._name = name

    @property
    def is_shown(self) -> bool:
        return self.status == "completed"

    def to_json(self) -> JsonObject:
        return items.new_item(self.type, self.id, arguments=self.text, name=self._name, server_label=self._server)

    def opening(self) -> Iterator[NamedEvent]:
        yield from ()

    def closing(self) -> Iterator[NamedEvent]:
        if self.is_shown:
            yield from super().opening()
            yield from super().closing()


class McpToolList(OutputItem):
    """The list of a tool server's tools. It is complete from the beginning."""

    type = "mcp_list_tools"

    def __init__(self, server: str, tools: Sequence[JsonObject]) -> None:
        super().__init__()
        self._server = server
        self._tools = tools

    def to_json(self) -> JsonObject:
        tools = [] if self.status == "in_progress" else [*self._tools]
        return items.new_item(self.type, self.id, server_label=self._server, tools=tools)

    def opening(self) -> Iterator[NamedEvent]:
        yield from super().opening()
        yield "mcp_list_tools.in_progress", {}

    def closing(self) -> Iterator[NamedEvent]:
        yield "mcp_list_tools.completed", {}
        yield from super().closing()


class TextItem(OutputItem):
    """An output item whose text is its only content part. `kind` is the type of the part, and the prefix of the names
    of the part's events.
    """

    kind: ClassVar[str]

    @abstractmethod
    def part(self) -> JsonObject:
        """The content part with the text received so far."""

    def opening(self) -> Iterator[NamedEvent]:
        yield from super().opening()
        yield "content_part.added", {"content_index": 0, "part": self.part()}

    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[NamedEvent]:
        self._texts.append(text)
        yield f"{self.kind}.delta", {"content_index": 0, "delta": text}

    def closing(self) -> Iterator[NamedEvent]:
        part = self.part()
        yield f"{self.kind}.done", {"content_index": 0, "text": part["text"]}
        yield "content_part.done", {"content_index": 0, "part": part}
        yield from super().closing()

    def parts(self) -> list[JsonObject]:
        """The content parts that the item has so far: one if a text has arrived or the item has ended,
        otherwise none.
        """
        return [self.part()] if self._texts or self.status != "in_progress" else []


class Reasoning(TextItem):
    """A reasoning item. It has `encrypted_content` if `is_encrypted`."""

    type = "reasoning"
    kind = "reasoning_text"

    def __init__(self, *, is_encrypted: bool) -> None:
        super().__init__()
        self._is_encrypted = is_encrypted

    def part(self) -> JsonObject:
        return items.reasoning_text(self.text)

    def to_json(self) -> JsonObject:
        encrypted = items.encrypted(self.text) if self._is_encrypted else None
        content = {"summary": [], "content": self.parts(), "encrypted_content": encrypted}
        return items.new_item(self.type, self.id, status=self.status, **content)


class Message(TextItem):
    """A message of the model."""

    type = "message"
    kind = "output_text"

    def __init__(self) -> None:
        super().__init__()
        self._logprobs: list[JsonObject] = []

    def part(self) -> JsonObject:
        return items.output_text(self.text, list(self._logprobs))

    def to_json(self) -> JsonObject:
        return items.message("assistant", self.parts(), self.id, self.status)

    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[NamedEvent]:
        scored = logprobs(list(tokens))["content"]
        self._logprobs += scored
        for name, fields in super().more(text, tokens):
            yield name, {**fields, "logprobs": [_for_event(entry) for entry in scored]}

    def closing(self) -> Iterator[NamedEvent]:
        for name, fields in super().closing():
            scored = {"logprobs": [_for_event(entry) for entry in self._logprobs]}
            yield name, {**fields, **scored} if name == "output_text.done" else fields


def _for_event(scored: JsonObject) -> JsonObject:
    """Convert a token's log probability from the format of response objects to the format of stream events, which has
    no bytes of the token.
    """
    top = [{"token": alternative["token"], "logprob": alternative["logprob"]} for alternative in scored["top_logprobs"]]
    return {"token": scored["token"], "logprob": scored["logprob"], "top_logprobs": top}


def error_of(error: GenaiServerError) -> JsonObject:
    """The field `error` of a failed response. OpenAI has no codes for this server's errors."""
    return {"code": "server_error", "type": error.code, "message": error.message, "param": None}


def stream_error(error: GenaiServerError, number: int) -> JsonObject:
    """The event that ends a stream with an error when there is no response object. `number` is the sequence number of
    the event.
    """
    fields = {"code": error.code, "message": error.message, "param": error.param}
    return {"type": "error", "sequence_number": number, **fields}


class ResponseBuilder:
    """Builds up a response object from the parts of its answer, and returns the stream events for each change. `begun`
    is the object that `translate.new_response` has created.

    The first call of `finish`, `cancel` or `fail` ends the response; after that, `add` must not be called.
    """

    def __init__(
        self,
        response: JsonObject,
        *,
        is_encrypted: bool = False,
        tools: Mapping[str, ResponseTool] = MappingProxyType({}),
        listed: Sequence[McpToolList] = (),
        approved: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._begun = response
        # The tools of tool servers that the response begins with.
        self._listed = listed
        # The approval requests of the calls that the client has approved, keyed by the calls' ids.
        self._approved = approved
        # Calls that the server runs, keyed by their indexes, until they have their results.
        self._called: dict[int, McpCall] = {}
        # See translate.tools_by_name.
        self._tools = tools
        # Whether reasoning items include `encrypted_content`.
        self._is_encrypted = is_encrypted
        self._items: list[OutputItem] = []
        self._tokens: list[ScoredToken] = []
        # The last item until it is closed.
        self._open_item: OutputItem | None = None
        self._num_events = 0
        self._last_event = ""

    @property
    def response(self) -> JsonObject:
        """The response object in its current state."""
        return {**self._begun, "output": [item.to_json() for item in self._items if item.is_shown]}

    def find_items(self, ids: Collection[str]) -> dict[str, JsonObject]:
        """The output items with these ids, by id."""
        return {item.id: item.to_json() for item in self._items if item.id in ids and item.is_shown}

    @property
    def is_ended(self) -> bool:
        """Whether the response has ended."""
        return self._begun["status"] not in ("queued", "in_progress")

    def begin(self) -> list[JsonObject]:
        """The first events of the stream: the response object, and the lists of tool servers' tools that it begins
        with.
        """
        events = [self._state("created"), self._state(self._begun["status"])]
        for tool_list in self._listed:
            events += [*self._open(tool_list), *self._close("completed")]
        return events

    def start(self) -> list[JsonObject]:
        """The event that a queued response is in progress; empty if the response was not queued."""
        if self._begun["status"] != "queued":
            return []
        self._begun = {**self._begun, "status": "in_progress"}
        return [self._state("in_progress")]

    def add(self, parts: Sequence[Part], tokens: Sequence[ScoredToken]) -> list[JsonObject]:
        """Add the next parts of the answer, and return the stream events for them.

        `tokens` are the tokens of the parts with their log probabilities; empty if the request does not ask for these.
        """
        self._tokens += tokens
        events: list[JsonObject] = []
        for part in parts:
            match part:
                case Thought(text):
                    if not isinstance(self._last_item, Reasoning):
                        events += self._open(Reasoning(is_encrypted=self._is_encrypted))
                    events += self._more(text)
                case Content(text):
                    if not isinstance(self._last_item, Message):
                        events += self._open(Message())
                    events += self._more(text, self._tokens_of(text))
                case _:
                    events += self._add_call(part)
        if parts:
            self._tokens = []
        return events

    def _add_call(self, part: ToolCallStart | ToolCallArguments | ToolCallEnd | ToolResult) -> list[JsonObject]:
        """Add the next part of a tool call, or the result of a tool that the server has run, and return the stream
        events for it.
        """
        match part:
            case ToolCallStart(index, call_id, name):
                item = self._call(call_id, name)
                if isinstance(item, McpCall):
                    self._called[index] = item
                return self._open(item)
            case ToolCallArguments(_, fragment):
                return self._more(fragment)
            case ToolCallEnd(index, True) if index in self._called:
                self._open_item = None
                return self._events(self._called[index].called())
            case ToolCallEnd(index, is_complete):
                self._called.pop(index, None)
                return self._close("completed" if is_complete else "incomplete")
        called = self._called.pop(part.index)
        return self._events(called.end(part.text, is_error=part.is_error), called)

    def finish(self, ending: Ending, usage: Usage, at: int, **more: Any) -> list[JsonObject]:
        """End the response because its answer is complete or was cut off, and return the last stream events.

        `at` is the time of completion in seconds since 1970. `more` are further fields of this server for the response
        object.
        """
        closing_events = self._close_called()
        if ending.is_cut:
            true_reason = {key: value for key, value in openai_reason(ending).items() if key != "finish_reason"}
            details = {"reason": "max_output_tokens", **true_reason}
            closing_events += self._close("incomplete")
            return [*closing_events, self._end("incomplete", usage, incomplete_details=details, **more)]
        # Clients expect a message after reasoning, even if it is empty.
        events = self._open(Message()) if isinstance(self._last_item, Reasoning | McpToolList | None) else []
        return [
            *closing_events,
            *events,
            *self._close("completed"),
            self._end("completed", usage, completed_at=at, **more),
        ]

    def cancel(self, usage: Usage) -> list[JsonObject]:
        """End the response as cancelled, and return the last events. OpenAI has no event for cancellation, so it is
        `incomplete`.
        """
        closing_events = self._close_called()
        return [*closing_events, *self._close("incomplete"), self._end("incomplete", usage, status="cancelled")]

    def fail(self, error: GenaiServerError, usage: Usage) -> JsonObject:
        """End the response with an error, and return the last event. If the response has already ended, its last event
        is returned again.
        """
        if self.is_ended:
            return self._state(self._last_event)
        for called in self._called.values():
            called.status = "incomplete"
        if self._open_item is not None:
            self._open_item.status = "incomplete"
        return self._end("failed", usage, error=error_of(error))

    def unstored(self, events: Sequence[JsonObject]) -> list[JsonObject]:
        """Set `store` to false in the response object, because storing it has failed. Returns `events`, the last stream
        events, with the changed object.
        """
        self._begun = {**self._begun, "store": False}
        return [{**event, "response": self.response} if "response" in event else event for event in events]

    @property
    def _last_item(self) -> OutputItem | None:
        return self._items[-1] if self._items else None

    def _call(self, call_id: str, name: str) -> OutputItem:
        match self._tools.get(name):
            case McpFunction(namespace=str(server)) as tool if tool.needs_approval and call_id not in self._approved:
                return McpApprovalRequest(server, tool.name)
            case McpFunction(namespace=str(server)) as tool:
                return McpCall(server, tool.name, self._approved.get(call_id))
            case FunctionTool() as tool:
                return FunctionCall(call_id, tool.name, tool.namespace)
            case CustomTool() as tool:
                return CustomCall(call_id, tool.name, tool.namespace)
            case TypedTool() as tool:
                return ClientToolCall(call_id, CLIENT_TOOLS[tool.type])
        return FunctionCall(call_id, name)

    def _open(self, item: OutputItem) -> list[JsonObject]:
        events = self._close("completed")
        self._open_item = item
        self._items.append(item)
        return events + self._events(item.opening())

    def _more(self, text: str, tokens: Sequence[ScoredToken] = ()) -> list[JsonObject]:
        return self._events(self._items[-1].more(text, tokens))

    def _close(self, status: Status) -> list[JsonObject]:
        if (item := self._open_item) is None:
            return []
        item.status = status
        self._open_item = None
        events = self._events(item.closing())
        if not (item.is_announced or item.is_shown):
            self._items.pop()  # the next item has its index
        return events

    def _end(self, event: str, usage: Usage, **fields: Any) -> JsonObject:
        self._begun = {**self._begun, "status": event, "usage": usage.to_response_json(), **fields}
        self._last_event = event
        return self._state(event)

    def _close_called(self) -> list[JsonObject]:
        """Mark the tool calls whose results will not arrive any more as incomplete, and return the last stream events
        of each.
        """
        events: list[JsonObject] = []
        for called in self._called.values():
            called.status = "incomplete"
            if called is not self._open_item:
                events += self._events(called.closing(), called)
        self._called.clear()
        return events

    def _events(self, named: Iterable[NamedEvent], item: OutputItem | None = None) -> list[JsonObject]:
        """Complete stream events about an output item, by default the last one: add the type, the sequence number, and
        the item's position and id.
        """
        position = {"output_index": len(self._items) - 1 if item is None else self._items.index(item)}
        item = self._items[-1] if item is None else item
        return [
            self._event(name, {**position, **({} if "item" in fields else {"item_id": item.id}), **fields})
            for name, fields in named
        ]

    def _state(self, name: str) -> JsonObject:
        return self._event(name, {"response": self.response})

    def _event(self, name: str, fields: JsonObject) -> JsonObject:
        self._num_events += 1
        return {"type": f"response.{name}", "sequence_number": self._num_events - 1, **fields}

    def _tokens_of(self, text: str) -> list[ScoredToken]:
        """The most recent tokens that together make up the text. Earlier tokens belong to markers such as those around
        reasoning, which are part of no text.
        """
        missing, tokens = len(text.encode(errors="replace")), []
        while missing > 0 and self._tokens:
            tokens.append(self._tokens.pop())
            missing -= len(tokens[-1].data)
        return tokens[::-1]
