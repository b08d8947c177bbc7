"""The chat endpoints of this server's own API: /v1/chat returns a whole answer, and /v1/chat/stream sends it as
server-sent events with one field `token` of text each. Unlike OpenAI's format, responses contain speed metrics.
"""

from collections.abc import AsyncGenerator, Collection
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from genai_server.answer_parts import (
    Content,
    Part,
    Reasoning,
    ScoredToken,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    WholeAnswer,
    WholeToolCall,
)
from genai_server.apis.chat_completions import logprobs, message, openai_reason
from genai_server.apis.shared.chat_history import HISTORY, convert_messages
from genai_server.apis.shared.router import error_responses
from genai_server.apis.shared.thinking_fields import OtherThinkingFields
from genai_server.errors import InvalidField
from genai_server.generation.answers import Ending, Generation
from genai_server.generation.dependencies import RequestContext, RequestContextDep, ServicesDep
from genai_server.generation.generate import generate
from genai_server.generation.parameters.base import Metrics, Text
from genai_server.generation.parameters.chat_messages import AnyToolCall, text_of
from genai_server.http.body_route import history_route
from genai_server.http.error_wording import FieldNames
from genai_server.http.json_response import JsonObject, built_response
from genai_server.http.streams import STREAMS, EventStream

router = APIRouter(
    route_class=history_route(HISTORY, convert=convert_messages),
    tags=["chat"],
    responses=error_responses(400, 404, 500, 503),
)


class ChatRequest(OtherThinkingFields):
    """Body of /v1/chat and /v1/chat/stream: messages, tools and sampling parameters with the names that they have in
    OpenAI's chat completions. There is always one answer, and the endpoint decides whether it is streamed.
    """

    stream: bool | None = Field(None, description="Determined by the endpoint; the other value is refused.")
    n: int | None = Field(None, ge=1, le=1, description="These endpoints generate one answer.")
    functions: None = None
    function_call: None = None


class ChatResponse(BaseModel):
    """Response of /v1/chat: the answer's text, reasoning and tool calls, its finish reason, and metrics of the
    generation.
    """

    id: str
    content: Text
    finish_reason: str
    metrics: Metrics
    reasoning_content: Text | None = None
    tool_calls: list[AnyToolCall] | None = None
    logprobs: dict[str, Any] | None = None


class ChatBuilder:
    """Builds the response of /v1/chat with `complete`, or the events of /v1/chat/stream with `part` and `last`. Each
    request has its own object. `custom_tools` are the names of tools that take a text instead of JSON.
    """

    def __init__(self, id: str, *, has_logprobs: bool = False, custom_tools: Collection[str] = ()) -> None:
        self._id = id
        self._has_logprobs = has_logprobs
        # The names of the tools that are called with a text, and a stream's calls of these that are not complete yet.
        self._custom_tools = custom_tools
        self._held: dict[int, WholeToolCall] = {}

    def complete(self, answer: WholeAnswer, ending: Ending, metrics: JsonObject) -> JsonObject:
        """Return the complete response of /v1/chat. `metrics` are the speed metrics, of which the time to the first
        token is set to null because the client receives all tokens at once.
        """
        fields = message(answer, self._custom_tools)
        return {
            "id": self._id,
            "content": answer.content,
            "finish_reason": _reason(ending),
            # The client receives all tokens at once, so there is no time to the first token.
            "metrics": {**metrics, "ttft": None},
            **{name: fields[name] for name in ("reasoning_content", "tool_calls") if name in fields},
            **self._logprobs(answer.tokens),
        }

    def part(self, parts: list[Part], tokens: list[ScoredToken]) -> JsonObject:
        """Return the event of a stream with the next parts of the answer, and with the log probabilities of `tokens`,
        the tokens of these parts, if the request asked for them.

        The field `token` has the text, or "" if there is none. Reasoning and tool calls have fields of their own, which
        are left out when empty.
        """
        event: JsonObject = {"token": ""}
        for part in parts:
            match part:
                case Content(text):
                    event["token"] += text
                case Reasoning(text):
                    event["reasoning"] = event.get("reasoning", "") + text
                case ToolCallStart(index, id, name) if name in self._custom_tools:
                    self._held[index] = WholeToolCall(id, name)
                case ToolCallStart(index, id, name):
                    event.setdefault("tool_calls", []).append({"index": index, "id": id, "name": name})
                case ToolCallArguments(index, fragment) if index in self._held:
                    self._held[index].arguments += fragment
                case ToolCallEnd(index, True) if index in self._held:
                    tool_call = self._held[index]
                    call = {
                        "index": index,
                        "id": tool_call.id,
                        "name": tool_call.name,
                        "input": text_of(tool_call.arguments),
                    }
                    event.setdefault("tool_calls", []).append(call)
                case ToolCallArguments(index, fragment):
                    event.setdefault("tool_calls", []).append({"index": index, "arguments": fragment})
        return {**event, **self._logprobs(tokens)}

    def last(self, ending: Ending, metrics: JsonObject) -> JsonObject:
        """Return the last event of a stream, with the finish reason and the speed metrics."""
        ended = {"finish_reason": _reason(ending), "metrics": metrics}
        return {"done": True, "token": "[DONE]", "id": self._id, **ended}

    def _logprobs(self, tokens: list[ScoredToken]) -> JsonObject:
        return {"logprobs": logprobs(tokens)} if self._has_logprobs else {}


def _reason(ending: Ending) -> str:
    """Return the finish reason of an answer in this API: this server's own reason where OpenAI has no matching value,
    otherwise OpenAI's.
    """
    return ending.reason.value if ending.reason.is_own else openai_reason(ending)["finish_reason"]


@router.post("/v1/chat", response_model=ChatResponse)
async def chat(body: ChatRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Generate the answer to a conversation with this server's own chat API, and return it as one object with text,
    finish reason and metrics.
    """
    if body.stream:
        raise InvalidField("stream", "must be false; POST /v1/chat/stream streams the answer")
    with context.leniency.with_names(FieldNames(body.thinking_names)):
        generation = await generate(services, body, context)
    build = _builder(body, context)
    (content,) = await context.run_while_connected(generation.whole())
    (answer,) = generation.answers
    return await built_response(
        lambda: build.complete(content, answer.ending, _metrics(generation, body)), is_long=bool(body.logprobs)
    )


@router.post("/v1/chat/stream", response_class=EventStream, status_code=200, responses=STREAMS)
async def chat_stream(body: ChatRequest, services: ServicesDep, context: RequestContextDep) -> EventStream:
    """Generate the answer to a conversation with this server's own chat API, and stream it as server-sent events, token
    by token. The last event has the finish reason and metrics.
    """
    if body.stream is False:
        raise InvalidField("stream", "must be true; POST /v1/chat returns the complete answer")
    with context.leniency.with_names(FieldNames(body.thinking_names)):
        generation = await generate(services, body, context, is_streamed=True)
    build = _builder(body, context)
    return EventStream(generation, _events(generation, build, body))


def _builder(body: ChatRequest, context: RequestContext) -> ChatBuilder:
    return ChatBuilder(context.record.unique_id, has_logprobs=bool(body.logprobs), custom_tools=body.custom_names)


def _metrics(generation: Generation, body: ChatRequest) -> JsonObject:
    """Return the object `metrics` of a response, which has the speed of the generation. Its field `model` is the
    model's name as the request gave it.
    """
    return {**generation.metrics(), "model": body.model or generation.model}


async def _events(generation: Generation, build: ChatBuilder, body: ChatRequest) -> AsyncGenerator[JsonObject]:
    async for _, answer, piece in generation.pieces():
        if piece is not None:
            yield build.part(piece.parts, piece.tokens)
        else:
            yield build.last(answer.ending, _metrics(generation, body))
