"""Builds a response of OpenAI's Responses API and its stream events from the parts of an answer
(https://platform.openai.com/docs/api-reference/responses-streaming).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

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
from genai_server.apis.chat_completions import openai_reason
from genai_server.apis.responses.client_tools import CLIENT_TOOLS
from genai_server.apis.responses.item_schemas import Status
from genai_server.apis.responses.output_items import (
    ClientToolCall,
    CustomCall,
    FunctionCall,
    McpApprovalRequest,
    McpCall,
    McpToolList,
    Message,
    NamedEvent,
    OutputItem,
    Reasoning,
)
from genai_server.apis.responses.tool_schemas import CustomTool, FunctionTool, McpFunction, ResponseTool, TypedTool
from genai_server.errors import GenaiServerError
from genai_server.generation.answers import Ending
from genai_server.http.json_response import JsonObject
from genai_server.http.telemetry.usage import Usage


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
        begun: JsonObject,
        *,
        is_encrypted: bool = False,
        tools: Mapping[str, ResponseTool] = MappingProxyType({}),
        listed: Sequence[McpToolList] = (),
        approved: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._begun = begun
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
        for each in self._listed:
            events += [*self._open(each), *self._close("completed")]
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
        left = self._close_called()
        if ending.is_cut:
            true_reason = {key: value for key, value in openai_reason(ending).items() if key != "finish_reason"}
            details = {"reason": "max_output_tokens", **true_reason}
            left += self._close("incomplete")
            return [*left, self._end("incomplete", usage, incomplete_details=details, **more)]
        # Clients expect a message after reasoning, even if it is empty.
        events = self._open(Message()) if isinstance(self._last_item, Reasoning | McpToolList | None) else []
        return [*left, *events, *self._close("completed"), self._end("completed", usage, completed_at=at, **more)]

    def cancel(self, usage: Usage) -> list[JsonObject]:
        """End the response as cancelled, and return the last events. OpenAI has no event for cancellation, so it is
        `incomplete`.
        """
        left = self._close_called()
        return [*left, *self._close("incomplete"), self._end("incomplete", usage, status="cancelled")]

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
        missing, found = len(text.encode(errors="replace")), []
        while missing > 0 and self._tokens:
            found.append(self._tokens.pop())
            missing -= len(found[-1].data)
        return found[::-1]
