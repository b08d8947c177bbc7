"""OpenAI's /v1/chat/completions: its body, what of it lenient requests may have in vain, and its responses."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal, Self

import msgspec
from fastapi.responses import Response
from pydantic import Field, model_validator

from genai_server.apis.chat_completions.response import ChatCompletionBuilder, ChoicesBuilder, FunctionCallBuilder
from genai_server.apis.shared.base import ChatRouterFields, JsonObject, elements, field_error
from genai_server.apis.shared.chat_messages import (
    MAX_TOOLS,
    ChatParameters,
    Function,
    NamedFunction,
    NamedTool,
    Tool,
)
from genai_server.apis.shared.completion_body import CompletionRequest
from genai_server.apis.shared.router import VersionedRouter
from genai_server.apis.shared.sampling_parameters import OtherStructureFields, StreamFields
from genai_server.apis.tokens.schemas import RenderedPrompt
from genai_server.generation.answers import Generation
from genai_server.generation.dependencies import RequestContext, Services, TheRequestContext, TheServices
from genai_server.generation.generate import generate
from genai_server.generation.prompts import encode_chat
from genai_server.http.body_route import TheLeniency, lenient_route
from genai_server.http.json_response import built_response, json_response
from genai_server.http.leniency import remove, remove_values, renaming, replace_media
from genai_server.http.sse import STREAMS, EventStream
from genai_server.pooling_model import Task

# Values without effect, of a lenient chat completion.
VALUES = {"verbosity": ("low", "high")}
# vLLM's choice of grammar library and JSON whitespace, both of which are fixed here.
COMPLETIONS_WITHOUT_EFFECT = (
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "structured_outputs.whitespace_pattern",
)
MEDIA = {"file": "file"}
# Chunks with more scored tokens are built in a thread: an echoed prompt may be as long as the context.
_MANY_TOKENS = 100


class ChatCompletionRequest(ChatParameters, StreamFields, ChatRouterFields, OtherStructureFields):
    """Body of /v1/chat/completions."""

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
        return {**super().other_names, **older}


def leave_out_of_chat(body: Any) -> list[str]:
    """Remove unsupported parts from a body of chat completions; returns the locations removed."""
    found = leave_out_of_completion(body) + remove_values(body, VALUES)
    return found + replace_media(body, MEDIA, "text", "messages[].content[]")


def leave_out_of_completion(body: Any) -> list[str]:
    """Like `leave_out_of_chat`, for a body of text completions."""
    return remove(body, *COMPLETIONS_WITHOUT_EFFECT)


router = VersionedRouter(lenient_route(leave_out_of_chat), "openai")


@router.post("/v1/chat/completions", responses=STREAMS)
async def create_chat_completion(
    body: ChatCompletionRequest,
    services: TheServices,
    context: TheRequestContext,
) -> Response:
    """OpenAI's chat completion, complete or as a stream of chunks."""
    builder = ChatCompletionBuilder if body.functions is None else FunctionCallBuilder
    return await choices_response(services, body, context, builder, id_prefix="chatcmpl", is_long=bool(body.logprobs))


@router.post("/v1/chat/completions/render", response_model=RenderedPrompt)
async def render_chat_completion(body: ChatCompletionRequest, services: TheServices, leniency: TheLeniency) -> Response:
    """The tokens of a chat's prompt, for routers that index prefixes, as in vLLM. Needs no engine."""
    served = await services.served(body.model, Task.GENERATE)
    prompt = await encode_chat(services, body, served.codec, leniency)
    return json_response({"token_ids": prompt.tokens})


async def choices_response(
    services: Services,
    body: ChatCompletionRequest | CompletionRequest,
    context: RequestContext,
    builder: type[ChoicesBuilder],
    *,
    id_prefix: str,
    is_long: bool,
) -> Response:
    """The response with all answers, in one object or as a stream. `is_long`: it may be large.

    Raises what `generate` does, naming the client's fields, and GenerationFailed.
    """
    with context.leniency.in_words(renaming(body.other_names)):
        generation = await generate(services, body, context, is_streamed=bool(body.stream))
    build = builder(
        f"{id_prefix}-{context.request_id.removeprefix('req-')}",
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
            msgspec.Raw(msgspec.json.encode(build.choice(index, whole, answer.reason)))
            for index, (whole, answer) in enumerate(zip(answers, generation.answers, strict=True))
        ]
        return _with_metrics(build.complete(choices, generation.usage()), generation, body)

    return await built_response(whole, is_long=is_long)


async def chunks(generation: Generation, build: ChoicesBuilder, body: StreamFields) -> AsyncGenerator[Any]:
    """The stream's chunks, followed by "[DONE]". Raises GenerationFailed."""
    for chunk in build.first(len(generation.answers)):
        yield chunk
    has_running_usage = body.has_running_usage
    async for index, answer, piece in generation.pieces():
        usage = generation.usage() if has_running_usage else None
        if piece is not None and usage is None and (text := piece.plain_text) is not None:
            yield build.text(index, text)
        elif piece is None:
            yield build.last(index, answer.reason, usage, calls_tools=answer.calls_tools)
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
