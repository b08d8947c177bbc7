"""The output items of a response that is being generated, and their stream events
(https://platform.openai.com/docs/api-reference/responses-streaming).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from genai_server.answer_parts import ScoredToken
from genai_server.apis.chat_completions import logprobs
from genai_server.apis.responses import items
from genai_server.apis.responses.client_tools import ClientTool, parsed_arguments
from genai_server.apis.responses.item_schemas import Status
from genai_server.generation.parameters.custom_tools import CustomText
from genai_server.http.json_response import JsonObject

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
            yield name, {**fields, "logprobs": [_for_event(one) for one in scored]}

    def closing(self) -> Iterator[NamedEvent]:
        for name, fields in super().closing():
            scored = {"logprobs": [_for_event(one) for one in self._logprobs]}
            yield name, {**fields, **scored} if name == "output_text.done" else fields


def _for_event(scored: JsonObject) -> JsonObject:
    """Convert a token's log probability from the format of response objects to the format of stream events, which has
    no bytes of the token.
    """
    top = [{"token": one["token"], "logprob": one["logprob"]} for one in scored["top_logprobs"]]
    return {"token": scored["token"], "logprob": scored["logprob"], "top_logprobs": top}
