"""The endpoints of Anthropic's Messages API: /v1/messages, which answers a conversation, and /v1/messages/count_tokens,
which counts the tokens of its prompt (https://docs.anthropic.com/en/api/messages).

`MessageBuilder` makes the message object of an answer or its stream events
(https://docs.anthropic.com/en/docs/build-with-claude/streaming).
"""

import asyncio
from collections.abc import AsyncGenerator

from fastapi.responses import JSONResponse, Response

from genai_server.answer_parts import (
    Content,
    Part,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    WholeAnswer,
    WholeText,
    WholeToolCall,
    WholeToolResult,
)
from genai_server.apis.messages.leniency import LEFT_OUT, convert
from genai_server.apis.messages.schemas import AnthropicErrorResponse, CountTokensRequest, MessagesRequest
from genai_server.apis.messages.tools import find_server_tools
from genai_server.apis.messages.translate import Translation
from genai_server.apis.shared.router import VersionedRouter
from genai_server.generation.answers import Ending, Generation
from genai_server.generation.dependencies import RequestContextDep, ServicesDep
from genai_server.generation.generate import generate
from genai_server.generation.prompts import encode_chat
from genai_server.generation.tool_loop import NO_TOOLS, ServedTools, generate_with_tools
from genai_server.http.body_route import lenient_route
from genai_server.http.json_response import JsonObject
from genai_server.http.streams import STREAMS, EventStream
from genai_server.http.telemetry.request_record import Usage
from genai_server.messages.generation_request import FinishReason
from genai_server.model_files.pooling_model import Task

# Clients drop thinking without a signature. Signatures are not verified: clients may edit the thinking they return.
_SIGNATURE = "unsigned"


class MessageBuilder:
    """Converts a model's answer to Anthropic's format. There is one for each answer, created by the route.

    For a whole answer, `complete` returns the message object. For a stream, `first` returns its first event, then
    `parts` is called for the answer's parts as they arrive, and at last `last` returns the events that end the stream.
    """

    def __init__(
        self,
        id: str,
        model: str,
        max_tokens: int,
        *,
        shows_thinking: bool = True,
        served: ServedTools = NO_TOOLS,
    ) -> None:
        # The tools that the server runs, and the ids of a stream's calls by their indexes.
        self._served = served
        self._ids: dict[int, str] = {}
        self._message = {"id": id, "type": "message", "role": "assistant", "model": model}
        self._max_tokens = max_tokens
        # Whether thinking blocks contain their text.
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open: str | None = None

    def complete(self, answer: WholeAnswer, ending: Ending, usage: Usage) -> JsonObject:
        """Return the message object for a whole answer. `ending` says how the answer ended, and `usage` has the token
        counts.
        """
        content = [self._block(block) for block in answer.blocks]
        return {**self._message, "content": content, **self._end(ending, usage), "usage": _usage(usage)}

    def first(self, usage: Usage) -> JsonObject:
        """Return the event `message_start`, the first one of a stream. `usage` has the token counts at this time."""
        end = {"stop_reason": None, "stop_sequence": None}
        return {"type": "message_start", "message": {**self._message, "content": [], **end, "usage": _usage(usage)}}

    def parts(self, parts: list[Part]) -> list[JsonObject]:
        """Return the stream events for the next parts of the answer: pieces of text, of reasoning and of tool calls,
        and results of tools that the server has run. The parts must come in order.
        """
        events: list[JsonObject] = []
        for part in parts:
            match part:
                case Content(text):
                    events += self._within({"type": "text", "text": ""})
                    events.append(self._delta({"type": "text_delta", "text": text}))
                case Reasoning(text):
                    events += self._within({"type": "thinking", "thinking": "", "signature": ""})
                    if self._shows_thinking:
                        events.append(self._delta({"type": "thinking_delta", "thinking": text}))
                case ToolCallStart(index, id, name):
                    self._ids[index] = id
                    events += self._within(self._call(id, name, {}))
                case ToolCallArguments(_, fragment):
                    events.append(self._delta({"type": "input_json_delta", "partial_json": fragment}))
                case ToolCallEnd():
                    events += self._close()
                case ToolResult(index, text, is_error):
                    result = _result(self._ids[index], text, is_error=is_error)
                    events += [*self._within(result), *self._close()]
        return events

    def last(self, ending: Ending, usage: Usage) -> list[JsonObject]:
        """Return the events that end a stream, after all parts of the answer. `ending` says how the answer ended, and
        `usage` has the final token counts.
        """
        end = {"type": "message_delta", "delta": self._end(ending, usage), "usage": _usage(usage)}
        return [*self._close(), end, {"type": "message_stop"}]

    def _call(self, id: str, name: str, arguments: JsonObject) -> JsonObject:
        tool = self._served.of(id, name)
        if tool is None:
            return {"type": "tool_use", "id": _tool_use_id(id), "name": name, "input": arguments}
        called = {"name": tool.info.name, "server_name": tool.server, "input": arguments}
        return {"type": "mcp_tool_use", "id": _served_id(id), **called}

    def _block(self, block: WholeText | WholeToolCall | WholeToolResult) -> JsonObject:
        if isinstance(block, WholeToolCall):
            return self._call(block.id, block.name, block.given)
        if isinstance(block, WholeToolResult):
            return _result(block.call.id, block.text, is_error=block.is_error)
        if block.is_reasoning:
            thinking = block.text if self._shows_thinking else ""
            return {"type": "thinking", "thinking": thinking, "signature": _SIGNATURE}
        return {"type": "text", "text": block.text}

    def _within(self, block: JsonObject) -> list[JsonObject]:
        """Return the stream events that make `block` the open content block of the message, into which the next pieces
        go: they end the block that is open and start the new one. The list is empty if a block of the same type is
        already open.
        """
        if self._open == block["type"]:
            return []
        events = self._close()
        self._index += 1
        self._open = block["type"]
        return [*events, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _delta(self, delta: JsonObject) -> JsonObject:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self) -> list[JsonObject]:
        if self._open is None:
            return []
        signs = self._open == "thinking"
        self._open = None
        signed = [self._delta({"type": "signature_delta", "signature": _SIGNATURE})] if signs else []
        return [*signed, {"type": "content_block_stop", "index": self._index}]

    def _end(self, ending: Ending, usage: Usage) -> JsonObject:
        """Return the fields of the message object that say how the answer ended: `stop_reason`, `stop_sequence` and,
        where Anthropic's API has no value for the reason, `genai_finish_reason`.

        The stop reason is "tool_use" only if all tool calls are complete, because clients execute the calls then.
        """
        if ending.stop_string is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": ending.stop_string}
        if not ending.is_cut:
            return {"stop_reason": "tool_use" if ending.calls_tools else "end_turn", "stop_sequence": None}
        if ending.reason is FinishReason.LENGTH:
            is_longest = usage.completion >= self._max_tokens
            stop_reason = "max_tokens" if is_longest else "model_context_window_exceeded"
            return {"stop_reason": stop_reason, "stop_sequence": None}
        return {"stop_reason": "max_tokens", "stop_sequence": None, "genai_finish_reason": ending.reason.value}


def _tool_use_id(id: str) -> str:
    """Return the id of a tool call that the client runs in Anthropic's format: `id`, an id of this server, with the
    prefix toolu_. An id without this server's prefix is returned unchanged; some chat templates (Mistral's) require ids
    of another format.
    """
    return f"toolu_{id.removeprefix('call_')}" if id.startswith("call_") else id


def _served_id(id: str) -> str:
    """Return the id of a tool call that this server has run in Anthropic's format: `id`, an id of this server, with the
    prefix mcptoolu_. An id without this server's prefix is returned unchanged; some chat templates (Mistral's) require
    ids of another format.
    """
    return f"mcptoolu_{id.removeprefix('call_')}" if id.startswith("call_") else id


def _result(id: str, text: str, *, is_error: bool) -> JsonObject:
    content = [{"type": "text", "text": text}]
    return {"type": "mcp_tool_result", "tool_use_id": _served_id(id), "is_error": is_error, "content": content}


def _usage(usage: Usage) -> JsonObject:
    """Return the token counts of an answer in Anthropic's format. Unlike this server's count, its `input_tokens` does
    not include prompt tokens that were found in the prefix cache.
    """
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


router = VersionedRouter(lenient_route(LEFT_OUT, convert=convert, caps=True), "anthropic", error=AnthropicErrorResponse)


@router.post("/v1/messages", responses=STREAMS)
async def create_message(body: MessagesRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Let a model answer a conversation. Returns its message as one object or, with `stream`, as a stream of events."""
    served = await find_server_tools(body, services, context)
    translation = await asyncio.to_thread(Translation, body, served)
    body.messages.clear()  # the translation has them, and drops the data of their images
    translation.report(context.leniency)
    with context.leniency.with_names(translation.names):
        if translation.tools.tools:
            generation = await generate_with_tools(
                services, translation.chat, context, translation.tools, is_streamed=bool(body.stream)
            )
        else:
            generation = await generate(services, translation.chat, context, is_streamed=bool(body.stream))
    build = MessageBuilder(
        context.answer_id("msg_"),
        generation.model,
        body.max_tokens,
        shows_thinking=body.thinking is None or body.thinking.display != "omitted",
        served=translation.tools,
    )
    if body.stream:
        return EventStream(generation, _events(generation, build), named=True)
    (content,) = await context.run_while_connected(generation.whole())
    (answer,) = generation.answers
    return JSONResponse(build.complete(content, answer.ending, answer.usage))


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountTokensRequest, services: ServicesDep, context: RequestContextDep) -> dict[str, int]:
    """Return the number of tokens of the prompt that a request to create a message would have. No answer is generated.
    It also works while no engine is running.
    """
    codec = (await services.served(body.model, Task.GENERATE)).codec
    served = await find_server_tools(body, services, context)
    translation = await asyncio.to_thread(Translation, body, served)
    translation.report(context.leniency)
    with context.leniency.with_names(translation.names):
        prompt = await context.run_in_time(encode_chat(services, translation.chat, codec, context))
    return {"input_tokens": len(prompt.tokens)}


async def _events(generation: Generation, build: MessageBuilder) -> AsyncGenerator[JsonObject]:
    (answer,) = generation.answers
    yield build.first(answer.usage)
    async for piece in answer.pieces():
        for event in build.parts(piece.parts):
            yield event
    for event in build.last(answer.ending, answer.usage):
        yield event
