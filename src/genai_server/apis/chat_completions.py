"""The endpoint /v1/chat/completions of OpenAI's API (https://platform.openai.com/docs/api-reference/chat): its body,
its routes, and the builders of its responses, which are complete chat completion objects or stream chunks. Text
completions have responses with the same field `choices`, so they share `ChoicesBuilder` and `choices_response`.

With the header `x-genai-run-tools`, a client lets the server run tools of the operator's tool servers. OpenAI's API has
no fields for this. Calls that the server has run and their results are in `genai_tool_runs`. Calls that the client has
to approve are in `tool_calls`, like calls of the client's own tools. To approve a call, the client sends the
conversation back without a result for it; to decline it, with a result that says so.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from fastapi import Header, Response
from pydantic import Field, model_validator

from genai_server.answer_parts import (
    Content,
    Part,
    Reasoning,
    ScoredToken,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    WholeAnswer,
    WholeText,
    WholeToolCall,
    WholeToolResult,
)
from genai_server.apis.shared.chat_history import FILES, HISTORY, convert_messages
from genai_server.apis.shared.router import VersionedRouter
from genai_server.apis.shared.thinking_fields import OtherThinkingFields
from genai_server.apis.tokens import RenderedPrompt
from genai_server.errors import InvalidField
from genai_server.generation.answers import Ending, Generation
from genai_server.generation.dependencies import RequestContext, RequestContextDep, Services, ServicesDep
from genai_server.generation.generate import generate
from genai_server.generation.parameters.base import ChatRouterFields, elements, field_error
from genai_server.generation.parameters.chat_messages import (
    MAX_TOOLS,
    Function,
    NamedFunction,
    NamedTool,
    Tool,
    text_of,
)
from genai_server.generation.parameters.completion_body import CompletionRequest
from genai_server.generation.parameters.sampling_parameters import OtherStructureFields, StreamFields
from genai_server.generation.prompts import encode_chat
from genai_server.generation.tool_loop import (
    NO_TOOLS,
    Selection,
    ServedTool,
    ServedTools,
    find_tools,
    generate_with_tools,
    served_tools,
    unanswered,
    usable_servers,
    with_tools,
)
from genai_server.http.body_route import lenient_route
from genai_server.http.error_wording import FieldNames
from genai_server.http.json_response import JsonObject, built_response, json_response
from genai_server.http.leniency import RemovalRules, replace_media
from genai_server.http.streams import STREAMS, EventStream
from genai_server.http.telemetry.request_record import Usage
from genai_server.messages.generation_request import FinishReason
from genai_server.model_files.pooling_model import Task

# Removed from text completions unless GENAI_STRICT is set: vLLM's choice of grammar library and JSON whitespace.
COMPLETIONS = RemovalRules(
    fields=("guided_decoding_backend", "guided_whitespace_pattern", "structured_outputs.whitespace_pattern")
)
# Removed from chat completions unless GENAI_STRICT is set: this server does not search the web or fall back to others.
CHATS = RemovalRules(
    fields=(*COMPLETIONS.fields, "fallbacks", "web_search_options"),
    values={"verbosity": ("low", "high"), "reasoning.summary": ("concise", "detailed")},
    rules=(lambda body: replace_media(body, FILES, "text", "messages[].content[]"), *HISTORY.rules),
    forms=HISTORY.forms,
)


class ChatCompletionRequest(OtherThinkingFields, StreamFields, ChatRouterFields, OtherStructureFields):
    """Body of /v1/chat/completions: the messages of the conversation, tools, sampling and streaming parameters, in
    OpenAI's format with additional fields that vLLM, llama.cpp and other servers accept. The older fields `functions`
    and `function_call` are converted to `tools` and `tool_choice`.
    """

    functions: Annotated[list[Function], elements(MAX_TOOLS)] | None = Field(None, description="Older name for tools.")
    function_call: Literal["none", "auto"] | NamedFunction | None = Field(
        None, description="Older name for tool_choice; only allowed with functions."
    )

    @model_validator(mode="after")
    def _functions_are_tools(self) -> Self:
        if self.function_call is not None and self.functions is None:
            raise field_error("function_call", "is only allowed with functions")
        if self.functions is None:
            return self
        called = self.function_call
        same_in_new = {
            "tools": [Tool(type="function", function=function) for function in self.functions],
            "tool_choice": NamedTool(type="function", function=called) if isinstance(called, NamedFunction) else called,
            "parallel_tool_calls": False,
        }
        for field, value in same_in_new.items():
            if getattr(self, field) not in (None, value):  # FastAPI validates a body twice
                raise field_error(field, "cannot be combined with functions")
            setattr(self, field, value)
        return self

    @property
    def other_names(self) -> dict[str, str]:
        older = {} if self.functions is None else {"tools": "functions", "tool_choice": "function_call"}
        return {**super().other_names, **older, **self.thinking_names}


# Chunks with more scored tokens are built in a thread: an echoed prompt may be as long as the context.
_MANY_TOKENS = 100
_encode = msgspec.json.Encoder().encode
# Field names for reasoning: DeepSeek's and llama.cpp's, then vLLM's and OpenRouter's.
REASONING = ("reasoning_content", "reasoning")
# The field with the calls that the server has run.
RUNS = "genai_tool_runs"
# The finish reason of answers that call tools.
CALLING = "tool_calls"


class ChoicesBuilder(ABC):
    """Builds the response to a request whose answers are entries of the field `choices`, as in OpenAI's completions.
    Each request has its own object of a subclass, one for chat and one for text completions.

    `complete` and `choice` build a complete object. The other methods build the chunks of a stream: `first` at its
    beginning, `part` and `text` for each answer's content, `last` for the end of an answer, and `usage` for the token
    counts. `has_usage` and `has_logprobs` say whether each chunk has token counts and log probabilities.
    """

    # The values of `object` in a complete object and in a chunk.
    complete_object: ClassVar[str]
    chunk_object: ClassVar[str]
    # The key of an answer's text in a chunk, in which no other object has this key.
    text_key: ClassVar[str]

    def __init__(
        self,
        id: str,
        model: str,
        created: int,
        *,
        fingerprint: str | None = None,
        has_usage: bool = False,
        has_logprobs: bool = False,
    ) -> None:
        self._common = {"id": id, "created": created, "model": model, "system_fingerprint": fingerprint}
        # Whether each chunk has a `usage`, which is null unless one is given.
        self._has_usage = has_usage
        self._has_logprobs = has_logprobs
        # The JSON of a chunk before and after its text, keyed by the answer's index.
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def complete(self, choices: Sequence[Any], usage: Usage) -> JsonObject:
        """Return the complete response object. `choices` has one entry for each answer, as the method `choice` returns
        it; `usage` are the token counts of all answers.
        """
        return {**self._common, "object": self.complete_object, "choices": choices, "usage": usage.to_json()}

    @abstractmethod
    def choice(self, index: int, answer: WholeAnswer, ending: Ending) -> JsonObject:
        """Return the entry in the field `choices` for one complete answer. `index` is the answer's position among all
        answers, and `ending` says why it ended.
        """

    @abstractmethod
    def first(self, num_answers: int) -> list[JsonObject]:
        """Return the chunks with which a stream of `num_answers` answers begins; there may be none."""

    @abstractmethod
    def part(self, index: int, parts: list[Part], tokens: list[ScoredToken], usage: Usage | None = None) -> JsonObject:
        """Return a chunk with the next parts of the answer with this index, such as texts and tool calls, and with the
        log probabilities of `tokens`. `usage` are the token counts so far, if each chunk is to have them.
        """

    def text(self, index: int, text: str) -> bytes:
        """Return a chunk, encoded as JSON, with more text of the answer with this index and nothing else. This is
        faster than `part`: all of the chunk but the text is encoded only once per answer.
        """
        around = self._around.get(index)
        if around is None:
            # Quotation marks in strings are escaped, so this matches only the key itself, which occurs once.
            before, key, after = _encode(self.part(index, [Content("")], [])).partition(
                b'"%b":' % self.text_key.encode()
            )
            around = self._around[index] = before + key, after.removeprefix(b'""')
        return b"%b%b%b" % (around[0], _encode(text), around[1])

    @abstractmethod
    def last(self, index: int, ending: Ending, usage: Usage | None = None) -> JsonObject:
        """Return the last chunk of the answer with this index, which has its finish reason. `usage` are the token
        counts so far, if each chunk is to have them.
        """

    def usage(self, usage: Usage) -> JsonObject:
        """Return the last chunk of a stream, which has no choices but the token counts of all answers."""
        return {**self._common, "object": self.chunk_object, "choices": [], "usage": usage.to_json()}

    def _chunk(self, choice: JsonObject, usage: Usage | None) -> JsonObject:
        chunk = {**self._common, "object": self.chunk_object, "choices": [choice]}
        return {**chunk, "usage": usage.to_json() if usage else None} if self._has_usage else chunk


class RoundTexts:
    """Joins the texts of an answer's rounds of generation with blank lines, because a message in OpenAI's format has
    one text.

    A round ends when the server runs tools for the model; the next round begins with their results. The caller reports
    the ends of rounds with `end_round` and passes each piece of text through `text`.
    """

    def __init__(self) -> None:
        # The last characters of the text so far, and whether a round has ended since.
        self._end = ""
        self._is_next = False

    def end_round(self) -> None:
        """Note that a round of generation has ended, because the server ran a tool, so that the next text begins after
        a blank line.
        """
        self._is_next = bool(self._end)

    def text(self, text: str) -> str:
        """Return the next piece of the answer's text, with a blank line in front of it if it is the first piece of a
        new round of generation and other text precedes it.
        """
        if not text:
            return ""
        missing = 2 - len(self._end) + len(self._end.rstrip("\n")) if self._is_next else 0
        self._end, self._is_next = (self._end + text)[-2:], False
        return "\n" * missing + text


class ChatCompletionBuilder(ChoicesBuilder):
    """Builds the response to a chat completion in OpenAI's format, either the complete object or the chunks of a
    stream. `custom_tools` are the names of tools that take a text instead of JSON; `served` are the tools that the
    server runs itself.
    """

    complete_object, chunk_object = "chat.completion", "chat.completion.chunk"
    text_key = "content"
    calling: ClassVar[str] = CALLING

    def __init__(
        self, *common: Any, custom_tools: Collection[str] = (), served: ServedTools = NO_TOOLS, **options: Any
    ) -> None:
        super().__init__(*common, **options)
        # The tools that the server runs.
        self._served = served
        # Calls of the server's tools in a stream, as far as they have arrived, keyed by the indexes of the answer and
        # of the call.
        self._runs: dict[tuple[int, int], JsonObject] = {}
        # The positions of the client's calls, if the server runs others, keyed in the same way.
        self._places: dict[tuple[int, int], int] = {}
        # The texts in a stream. The server runs tools of requests for one answer only.
        self._content, self._reasoning = RoundTexts(), RoundTexts()
        # The names of the tools that are called with a text.
        self._custom_tools = custom_tools
        # A stream's calls of these that are not complete yet, keyed by the indexes of the answer and of the call. A
        # client could execute the beginning of a text.
        self._held: dict[tuple[int, int], WholeToolCall] = {}

    def first(self, num_answers: int) -> list[JsonObject]:
        """Return the first chunk of each of `num_answers` answers. It contains only the role of the
        message, "assistant".
        """
        return [self._delta(index, {"role": "assistant", "content": ""}, []) for index in range(num_answers)]

    def text(self, index: int, text: str) -> bytes:
        return super().text(index, self._content.text(text) if self._served.tools else text)

    def part(self, index: int, parts: list[Part], tokens: list[ScoredToken], usage: Usage | None = None) -> JsonObject:
        delta: JsonObject = {}
        for part in parts:
            if not (self._served.tools and self._is_run(delta, part, index)):
                self._add(delta, part, index)
        return self._delta(index, self._with_calls(delta), tokens, usage)

    def last(self, index: int, ending: Ending, usage: Usage | None = None) -> JsonObject:
        return self._delta(index, {}, [], usage, openai_reason(ending, calling=self.calling))

    def choice(self, index: int, answer: WholeAnswer, ending: Ending) -> JsonObject:
        return {
            "index": index,
            "message": self._with_calls(message(answer, self._custom_tools, self._served)),
            "logprobs": self._logprobs(answer.tokens, always=True),
            **openai_reason(ending, calling=self.calling),
        }

    def _delta(
        self,
        index: int,
        delta: JsonObject,
        tokens: list[ScoredToken],
        usage: Usage | None = None,
        reason: JsonObject | None = None,
    ) -> JsonObject:
        ended = reason or {"finish_reason": None}
        return self._chunk({"index": index, "delta": delta, "logprobs": self._logprobs(tokens), **ended}, usage)

    def _is_run(self, delta: JsonObject, part: Part, answer: int) -> bool:
        """Handle a part of an answer that belongs to a tool call that the server runs instead of the client. Returns
        False, and does nothing, if the part does not belong to such a call; otherwise True.

        The call is added to the field `genai_tool_runs` of `delta`, the object of a stream chunk, when the call is
        complete, and its result when the tool has ended. `answer` is the index of the answer.
        """
        match part:
            case ToolCallStart(index, id, name) if (tool := self._served.of(id, name)) is not None:
                self._runs[answer, index] = _run(id, tool)
            case ToolCallArguments(index, fragment) if (answer, index) in self._runs:
                self._runs[answer, index]["arguments"] += fragment
            case ToolCallEnd(index, is_complete) if (answer, index) in self._runs:
                run = {"index": index, **self._runs[answer, index]}
                delta.setdefault(RUNS, []).append({**run, "status": "in_progress" if is_complete else "incomplete"})
            case ToolResult(index, text, is_error):
                self._content.end_round()
                self._reasoning.end_round()
                run = {"index": index, "id": self._runs[answer, index]["id"]}
                delta.setdefault(RUNS, []).append({**run, **_result(text, is_error=is_error)})
            case _:
                return False
        return True

    def _add(self, delta: JsonObject, part: Part, answer: int) -> None:
        match part:
            case Content(text):
                delta["content"] = delta.get("content", "") + self._content.text(text)
            case Reasoning(text):
                delta |= dict.fromkeys(REASONING, delta.get(REASONING[0], "") + self._reasoning.text(text))
            case ToolCallStart(index, id, name) if name in self._custom_tools:
                self._held[answer, index] = WholeToolCall(id, name)
            case ToolCallStart(index, id, name):
                position = self._place(answer, index)
                call = {"index": position, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
                delta.setdefault("tool_calls", []).append(call)
            case ToolCallArguments(index, fragment) if (answer, index) in self._held:
                self._held[answer, index].arguments += fragment
            case ToolCallArguments(index, fragment):
                calls, position = delta.setdefault("tool_calls", []), self._place(answer, index)
                if calls and calls[-1]["index"] == position:
                    calls[-1]["function"]["arguments"] += fragment
                else:
                    calls.append({"index": position, "function": {"arguments": fragment}})
            case ToolCallEnd(index, is_complete) if (answer, index) in self._held:
                tool_call = self._held.pop((answer, index))
                if is_complete:
                    call = {"index": self._place(answer, index), **_call(tool_call, is_custom=True)}
                    delta.setdefault("tool_calls", []).append(call)

    def _place(self, answer: int, index: int) -> int:
        """Return the index under which the client sees a tool call of the answer with the index `answer`. It does not
        count calls that the server runs itself, whereas the argument `index` counts all calls of the answer.
        """
        if not self._served.tools:
            return index
        before = sum(other == answer for other, _ in self._places)
        return self._places.setdefault((answer, index), before)

    def _with_calls(self, fields: JsonObject) -> JsonObject:
        """Convert the tool calls in `fields`, which is a message or the delta of a chunk, to the format that the client
        uses. This class returns `fields` unchanged; a subclass changes the field `tool_calls` to OpenAI's older format.
        """
        return fields

    def _logprobs(self, tokens: list[ScoredToken], *, always: bool = False) -> JsonObject | None:
        if not self._has_logprobs or not (tokens or always):
            return None
        return logprobs(tokens)


class FunctionCallBuilder(ChatCompletionBuilder):
    """Builds the response to a chat completion whose request has the older field `functions` instead of `tools`. A
    message then has one `function_call` without an id in place of `tool_calls`.
    """

    calling = "function_call"

    def _with_calls(self, fields: JsonObject) -> JsonObject:
        if calls := fields.pop("tool_calls", None):
            fields["function_call"] = calls[0]["function"]
        return fields


def message(answer: WholeAnswer, custom_tools: Collection[str] = (), served: ServedTools = NO_TOOLS) -> JsonObject:
    """Return the assistant's message for a complete answer, in OpenAI's format.

    `custom_tools` are the names of tools that take a text instead of JSON. Incomplete calls of custom tools are left
    out, because a client could execute the beginning of a text. Calls of `served` tools, which the server runs itself,
    are in the field `genai_tool_runs` instead of `tool_calls`.
    """
    runs = [call for call in answer.tool_calls if served.of(call.id, call.name) is not None]
    calls = [
        call for call in answer.tool_calls if call not in runs and (call.is_complete or call.name not in custom_tools)
    ]
    content, reasoning = _joined(answer, is_reasoning=False), _joined(answer, is_reasoning=True)
    fields: JsonObject = {"role": "assistant", "content": content, "refusal": None}
    if reasoning:
        fields |= dict.fromkeys(REASONING, reasoning)
    if runs:
        fields[RUNS] = [_whole_run(call, answer, served) for call in runs]
    if calls:
        fields["content"] = content or None
        fields["tool_calls"] = [_call(call, is_custom=call.name in custom_tools) for call in calls]
    return fields


def _joined(answer: WholeAnswer, *, is_reasoning: bool) -> str:
    """Return the reasoning of an answer if `is_reasoning` is set, otherwise its text. The texts of all rounds of
    generation, between which the server ran tools, are joined with blank lines.
    """
    texts, parts = RoundTexts(), []
    for block in answer.blocks:
        if isinstance(block, WholeText) and block.is_reasoning == is_reasoning:
            parts.append(texts.text(block.text))
        elif isinstance(block, WholeToolResult):
            texts.end_round()
    return "".join(parts)


def _run(id: str, tool: ServedTool, arguments: str = "") -> JsonObject:
    """Return an entry of the field `genai_tool_runs`, which describes a tool call that the server runs itself. The
    entry does not have the status and the result yet.
    """
    return {"id": id, "server": tool.server, "name": tool.info.name, "arguments": arguments}


def _result(text: str, *, is_error: bool) -> JsonObject:
    return {"status": "failed" if is_error else "completed", "output": text}


def _whole_run(call: WholeToolCall, answer: WholeAnswer, served: ServedTools) -> JsonObject:
    tool = served.of(call.id, call.name)
    assert tool is not None
    run = _run(call.id, tool, call.arguments)
    result = next((result for result in answer.tool_results if result.call is call), None)
    if result is None:
        return {**run, "status": "incomplete"}
    return {**run, **_result(result.text, is_error=result.is_error)}


def _call(call: WholeToolCall, *, is_custom: bool) -> JsonObject:
    if is_custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": text_of(call.arguments)}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def logprobs(tokens: list[ScoredToken]) -> JsonObject:
    """Return the object `logprobs` of a choice, which has the log probability of each token and of its most likely
    alternatives, in the format of OpenAI's chat completions.
    """
    content = [{**_scored(token), "top_logprobs": [_scored(other) for other in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _scored(token: ScoredToken) -> JsonObject:
    return {"token": token.text, "logprob": token.logprob, "bytes": tuple(token.data)}


def openai_reason(ending: Ending, *, calling: str = CALLING) -> JsonObject:
    """Return the field `finish_reason` of a choice and, if OpenAI has no value for the reason, the field
    `genai_finish_reason` with this server's own value.

    `calling` is the finish reason of an answer that ends with tool calls. Every answer that was cut off has OpenAI's
    reason "length".
    """
    if ending.is_cut and ending.reason is not FinishReason.LENGTH:
        return {"finish_reason": FinishReason.LENGTH.value, "genai_finish_reason": ending.reason.value}
    return {"finish_reason": calling if ending.calls_tools else ending.reason.value}


async def choices_response(
    services: Services,
    body: ChatCompletionRequest | CompletionRequest,
    context: RequestContext,
    builder: Callable[..., ChoicesBuilder],
    *,
    id_prefix: str,
    is_long: bool,
    tools: ServedTools = NO_TOOLS,
) -> Response:
    """Generate the answers to a chat or text completion and return the response, which is one object or a stream.

    `builder` is a subclass of ChoicesBuilder, which builds the response, or a function that returns an instance of one.
    `id_prefix` is the beginning of the response's id. `is_long` says that the response may be large, so that it is
    built in a thread. `tools` are the tools that the server runs itself. Raises RequestError if the request is invalid,
    Unavailable if no engine can take it, and GenerationFailed; errors name fields as the client of this endpoint does.
    """
    with context.leniency.with_names(FieldNames(body.other_names)):
        if tools.tools and isinstance(body, ChatCompletionRequest):
            generation = await generate_with_tools(services, body, context, tools, is_streamed=bool(body.stream))
        else:
            generation = await generate(services, body, context, is_streamed=bool(body.stream))
    build = builder(
        context.answer_id(id_prefix),
        generation.model,
        int(time.time()),
        fingerprint=generation.fingerprint,
        has_usage=body.has_last_usage or body.has_running_usage,
        has_logprobs=body.logprobs is not None and body.logprobs is not False,
    )
    if body.stream:
        return EventStream(generation, chunks(generation, build, body))
    answers = await context.run_while_connected(generation.whole())

    def whole() -> JsonObject:
        # Choices are encoded one by one: encoding holds the GIL, and other threads can run in between.
        choices = [
            msgspec.Raw(msgspec.json.encode(build.choice(index, whole, answer.ending)))
            for index, (whole, answer) in enumerate(zip(answers, generation.answers, strict=True))
        ]
        return _with_metrics(build.complete(choices, generation.usage()), generation, body)

    return await built_response(whole, is_long=is_long)


async def chunks(generation: Generation, build: ChoicesBuilder, body: StreamFields) -> AsyncGenerator[Any]:
    """Yield the chunks of a streamed response, which `build` builds from the answers of `generation`, and "[DONE]" at
    the end. Raises GenerationFailed.
    """
    for chunk in build.first(len(generation.answers)):
        yield chunk
    has_running_usage = body.has_running_usage
    async for index, answer, piece in generation.pieces():
        usage = generation.usage() if has_running_usage else None
        if piece is not None and usage is None and (text := piece.plain_text) is not None:
            yield build.text(index, text)
        elif piece is None:
            yield build.last(index, answer.ending, usage)
        elif piece.progress is not None:
            yield {**build.part(index, [], [], usage), "prompt_progress": piece.progress}
        elif len(piece.tokens) > _MANY_TOKENS:
            yield await asyncio.to_thread(build.part, index, piece.parts, piece.tokens, usage)
        else:
            yield build.part(index, piece.parts, piece.tokens, usage)
    if body.has_last_usage or body.include_metrics:
        yield _with_metrics(build.usage(generation.usage()), generation, body)
    yield "[DONE]"


def _with_metrics(built: JsonObject, generation: Generation, body: StreamFields) -> JsonObject:
    return {**built, "metrics": generation.metrics()} if body.include_metrics else built


router = VersionedRouter(lenient_route(CHATS, convert=convert_messages), "openai")
# The header with which a client lets the server run tools.
HEADER = "x-genai-run-tools"
# The type of a route's parameter.
RunTools = Annotated[
    str | None,
    Header(alias=HEADER, description="Names of tool servers, separated by commas, whose tools the server runs itself."),
]


@router.post("/v1/chat/completions", responses=STREAMS)
@router.post("/api/v0/chat/completions", include_in_schema=False)  # LM Studio's name
async def create_chat_completion(
    body: ChatCompletionRequest, services: ServicesDep, context: RequestContextDep, run_tools: RunTools = None
) -> Response:
    """Create a chat completion: generate the assistant's next message in a conversation, as one object or as a stream
    of chunks. `run_tools` are the names of tool servers, separated by commas, whose tools this server runs itself.
    """
    body, tools = await find_run_tools(run_tools, body, services, context)
    kind = ChatCompletionBuilder if body.functions is None else FunctionCallBuilder
    builder = partial(kind, custom_tools=body.custom_names, served=tools)
    is_long = bool(body.logprobs) or bool(tools.tools)
    return await choices_response(services, body, context, builder, id_prefix="chatcmpl-", is_long=is_long, tools=tools)


@router.post("/v1/chat/completions/render", response_model=RenderedPrompt)
async def render_chat_completion(
    body: ChatCompletionRequest, services: ServicesDep, context: RequestContextDep
) -> Response:
    """Get the token ids of a chat's prompt without generating an answer, as in vLLM. Routers that track which prompts
    are cached where call this endpoint. It needs no running engine.
    """
    served = await services.served(body.model, Task.GENERATE)
    prompt = await context.run_in_time(encode_chat(services, body, served.codec, context))
    return json_response({"token_ids": prompt.tokens})


async def find_run_tools(
    names: str | None, body: ChatCompletionRequest, services: Services, context: RequestContext
) -> tuple[ChatCompletionRequest, ServedTools]:
    """Add the tools of tool servers, the operator's programs whose tools this server runs itself, to a request body.

    `names` is the value of the header `x-genai-run-tools`, the tool servers' names separated by commas; None without
    the header. Returns the new body and the tools that the server runs; `body` is not changed. Raises InvalidField,
    ToolServerUnavailable, ClientLeft and DeadlinePassed.
    """
    chosen = list(dict.fromkeys(filter(None, (name.strip() for name in (names or "").split(",")))))
    if not chosen:
        return body, ServedTools()
    usable = usable_servers(services, context)
    for name in chosen:
        if name not in usable:
            allowed = ", ".join(usable) or "none"
            raise InvalidField(HEADER, f"must name tool servers that this request may use ({allowed})", given=name)
    if (body.n or 1) > 1:
        raise InvalidField("n", f"must be 1 with the header {HEADER}", given=body.n)
    if body.functions is not None:
        raise InvalidField("functions", f"cannot be combined with the header {HEADER}; use tools")
    tools: list[ServedTool] = await find_tools(services, context, body.model, [Selection(name) for name in chosen])
    served = served_tools(tools, body, unanswered(body.messages))
    return with_tools(body, tools), served
