"""Builds a response of OpenAI's Responses API from the parts of a model's answer
(https://platform.openai.com/docs/api-reference/responses-streaming).

`ResponseBuilder` takes the parts of the answer one after another and returns the stream events for each; its attribute
`response` is the whole object. Each output item of the response is an object of a subclass of `OutputItem`: a message,
reasoning, or a call of one kind of tool.
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
    """An output item of a response that is being generated, such as a message or a function call. Its text arrives
    piece by piece.

    A ResponseBuilder creates the item and calls `opening` once, `more` for each piece of text, and `closing` once;
    these methods yield the item's stream events. Its `status` is in_progress until the builder sets it to completed or
    incomplete, before it calls `closing`.
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
        """Return the text of the item received so far: of a message, reasoning, or the arguments of a call."""
        return "".join(self._texts)

    @property
    def is_shown(self) -> bool:
        """Return whether the response object contains the item in its current state. Some kinds of items, such as shell
        calls, are shown only when they are complete.
        """
        return True

    @abstractmethod
    def to_json(self) -> JsonObject:
        """Return the item in its current state as the JSON object that the response contains."""

    def opening(self) -> Iterator[NamedEvent]:
        """Yield the stream events that announce the item, before any of its text. There are none for items such as
        shell calls, of which the client may see no part before they are complete.
        """
        yield "output_item.added", {"item": self.to_json()}

    def more(self, text: str, tokens: Sequence[ScoredToken]) -> Iterator[NamedEvent]:
        """Add a piece of text to the item, and yield the stream events for it. `tokens` are the tokens of this text
        with their log probabilities; they are empty if the request does not ask for log probabilities.
        """
        self._texts.append(text)
        yield from ()

    def closing(self) -> Iterator[NamedEvent]:
        """Yield the stream events that end the item. The caller must have set `status` before."""
        yield "output_item.done", {"item": self.to_json()}


class FunctionCall(OutputItem):
    """An output item `function_call`: a call of a function that the client runs. The text of the item is the JSON text
    of the call's arguments.
    """

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
    """An output item `custom_tool_call`: a call of a custom tool, which takes a text instead of JSON arguments. The
    model writes it as a function call whose only argument is this text; the item extracts the text.

    A call that the model did not complete gets no events after those for its pieces of text, and the response does not
    contain it, because a client could execute the beginning of a text.
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
    """An output item for a call of one of OpenAI's own tools that the client runs, such as apply_patch or shell. It is
    shown only when it is complete, because a part of a patch or command must not be executed.
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
    """An output item `mcp_call`: a call of a tool on an MCP tool server, which this server runs. The arguments arrive
    piece by piece (`more`), then `called` is used, and at last `end` with the whole result.
    """

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
        """Yield the stream event that says that all arguments of the call have arrived. It is sent before the tool
        runs.
        """
        yield "mcp_call_arguments.done", {"arguments": self.text}

    def end(self, text: str, *, is_error: bool) -> Iterator[NamedEvent]:
        """End the item with the tool's result, and yield its last stream events. `text` is the result or, if
        `is_error`, the message of the error with which the tool has failed.
        """
        self._result, self.status = (text, is_error), "completed"
        yield "mcp_call.failed" if is_error else "mcp_call.completed", {}
        yield from self.closing()


def tool_error(text: str) -> JsonObject:
    """Return the value of the field `error` of an `mcp_call` item whose tool has failed. `text` is the message of the
    error.
    """
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}


class McpApprovalRequest(OutputItem):
    """An output item `mcp_approval_request`: it asks the client to approve a call of a tool on an MCP tool server,
    before this server runs the call. The client answers in its next request.

    The item is shown only when the model has written the call completely, since a part of a call cannot be approved.
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
    """An output item `mcp_list_tools`: the list of an MCP tool server's tools, which the response begins with. All
    tools are known when the item is created, and it receives no text.
    """

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
    """Base class of the output items that are texts: messages and reasoning. Each has one content part with its text.
    The subclass sets `kind`, which is the type of this part and the first part of the names of its stream events, as in
    output_text.delta.
    """

    kind: ClassVar[str]

    @abstractmethod
    def part(self) -> JsonObject:
        """Return the content part of the item as a JSON object, with the text received so far."""

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
        """Return the list of content parts that the JSON object of the item has now. It has one part, or is empty as
        long as the item is in progress and has received no text.
        """
        return [self.part()] if self._texts or self.status != "in_progress" else []


class Reasoning(TextItem):
    """An output item `reasoning`: a part of the model's reasoning. With `is_encrypted`, the item also has the field
    `encrypted_content`, which clients may send back in place of the text.
    """

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
    """An output item `message`: a part of the answer's text, with the log probabilities of its tokens if the request
    asks for them.
    """

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
    """Convert the log probability of a token from the format of response objects to the format of stream events, which
    does not have the bytes of the token. Returns a new object.
    """
    top = [{"token": alternative["token"], "logprob": alternative["logprob"]} for alternative in scored["top_logprobs"]]
    return {"token": scored["token"], "logprob": scored["logprob"], "top_logprobs": top}


def error_of(error: GenaiServerError) -> JsonObject:
    """Return the value of the field `error` of a failed response. Its `code` is always "server_error", because OpenAI's
    API defines no codes for this server's errors; this server's code is in `type`.
    """
    return {"code": "server_error", "type": error.code, "message": error.message, "param": None}


def stream_error(error: GenaiServerError, number: int) -> JsonObject:
    """Return the event with which a stream ends because of an error if no response object can be sent in it. `number`
    is the sequence number of the event.
    """
    fields = {"code": error.code, "message": error.message, "param": error.param}
    return {"type": "error", "sequence_number": number, **fields}


class ResponseBuilder:
    """Builds the response object of the Responses API from the parts of a model's answer, and returns the stream events
    for each change; it sends nothing itself. The route creates one for each response, from the new object that
    `translate.new_response` has made, whose status is queued or in_progress.

    `begin` gives the first events. `start` changes a queued response to in_progress. `add` takes the next parts of the
    answer. The first call of `finish`, `cancel` or `fail` ends the response as completed, incomplete, cancelled or
    failed; `add` must not be called after that. The property `response` is the response object in its current state at
    any time.
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
        """Return the response object in its current state, with the output items that are shown so far."""
        return {**self._begun, "output": [item.to_json() for item in self._items if item.is_shown]}

    def find_items(self, ids: Collection[str]) -> dict[str, JsonObject]:
        """Return the output items of the response whose ids are in `ids`, keyed by id. Unknown ids are omitted."""
        return {item.id: item.to_json() for item in self._items if item.id in ids and item.is_shown}

    @property
    def is_ended(self) -> bool:
        """Return whether the response has ended: it is completed, incomplete, cancelled or failed."""
        return self._begun["status"] not in ("queued", "in_progress")

    def begin(self) -> list[JsonObject]:
        """Return the first events of the stream: two with the new response object, and those for the lists of MCP tools
        that the response begins with. To be called once, before all other methods that return events.
        """
        events = [self._state("created"), self._state(self._begun["status"])]
        for tool_list in self._listed:
            events += [*self._open(tool_list), *self._close("completed")]
        return events

    def start(self) -> list[JsonObject]:
        """Set the status of a queued response to in_progress because the model has begun to answer. Returns the event
        for this change; the list is empty if the response is not queued.
        """
        if self._begun["status"] != "queued":
            return []
        self._begun = {**self._begun, "status": "in_progress"}
        return [self._state("in_progress")]

    def add(self, parts: Sequence[Part], tokens: Sequence[ScoredToken]) -> list[JsonObject]:
        """Add the next parts of the answer to the response, and return the stream events for them.

        `tokens` are the tokens of these parts with their log probabilities; empty if the request does not ask for log
        probabilities.
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
        """Add one part of a tool call to the response: its start, a piece of its arguments, its end, or the result of a
        tool that this server has run. Returns the stream events for the part.
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
        """End the response because the model's answer has ended, and return the last stream events. `ending` says how
        the answer ended: if it was cut off, the response becomes incomplete, otherwise completed.

        `usage` has the token counts, `at` is the time of completion in seconds since 1970, and `more` are additional
        fields for the response object that OpenAI's API does not have.
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
        """End the response with the status cancelled and the answer so far, and return the last stream events. `usage`
        has the token counts. The last event is response.incomplete, because OpenAI's API has no event for a cancelled
        response.
        """
        closing_events = self._close_called()
        return [*closing_events, *self._close("incomplete"), self._end("incomplete", usage, status="cancelled")]

    def fail(self, error: GenaiServerError, usage: Usage) -> JsonObject:
        """End the response with the status failed because of `error`, and return the last stream event. `usage` has the
        token counts. If the response has already ended, it does not change, and its last event is returned again.
        """
        if self.is_ended:
            return self._state(self._last_event)
        for called in self._called.values():
            called.status = "incomplete"
        if self._open_item is not None:
            self._open_item.status = "incomplete"
        return self._end("failed", usage, error=error_of(error))

    def unstored(self, events: Sequence[JsonObject]) -> list[JsonObject]:
        """Set the field `store` of the response to false, because the response has ended but could not be stored.
        `events` are the last stream events, which have not been sent yet. Returns copies of them that contain the
        changed response.
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
        """Set the calls of MCP tools that still wait for their results to incomplete, because the response ends before
        the results arrive. Returns the last stream events of these calls, except of a call whose arguments are still
        arriving: the method `_close` ends it.
        """
        events: list[JsonObject] = []
        for called in self._called.values():
            called.status = "incomplete"
            if called is not self._open_item:
                events += self._events(called.closing(), called)
        self._called.clear()
        return events

    def _events(self, named: Iterable[NamedEvent], item: OutputItem | None = None) -> list[JsonObject]:
        """Return complete stream events for those that an output item has yielded, in which the type, the sequence
        number, and the position and id of the item are added. `named` has the name and the fields of each event. `item`
        is the item; None stands for the last one of the response.
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
        """Remove from the tokens received so far the last ones that together make up `text`, and return them in order.
        Tokens before them belong to markers, such as those around reasoning, which are not part of any text.
        """
        missing, tokens = len(text.encode(errors="replace")), []
        while missing > 0 and self._tokens:
            tokens.append(self._tokens.pop())
            missing -= len(tokens[-1].data)
        return tokens[::-1]
