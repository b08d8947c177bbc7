"""Endpoints that convert between text and token ids and that apply a model's chat template, in vLLM's and llama.cpp's
formats: /tokenize, /detokenize, /tokenizer_info and /apply-template. They need no running engine.
"""

import asyncio
from typing import Annotated, Any, Self

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from genai_server.apis.shared.chat_history import HISTORY, convert_messages
from genai_server.apis.shared.router import error_responses
from genai_server.generation.dependencies import RequestContext, RequestContextDep, Services, ServicesDep
from genai_server.generation.parameters.base import NullFields, Text, elements
from genai_server.generation.parameters.chat_messages import Messages, Tools, tool_for_template
from genai_server.generation.parameters.completion_body import MAX_TOKENS
from genai_server.generation.prompts import encode_messages
from genai_server.http.body_route import LeniencyDep, history_route
from genai_server.http.json_response import json_response
from genai_server.model_files.pooling_model import Task
from genai_server.text.codec import TextCodec
from genai_server.text.prompts.prompt import WrittenPrompt

_SOURCES = ("prompt", "content", "messages")
_ONLY_WITH = {
    "add_special_tokens": "prompt",
    "add_special": "content",
    "parse_special": "content",
    "tools": "messages",
    "chat_template_kwargs": "messages",
}


class TokenizeRequest(NullFields):
    """Body of /tokenize. What to tokenize is exactly one of `prompt` (a text, in vLLM's format), `content` (a text, in
    llama.cpp's format) and `messages` (a chat, to which the chat template is applied).
    """

    model: str | None = Field(None, description="Id of a served model; by default the first one.")
    prompt: Text | None = None
    content: Text | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = Field(
        None, description="With `prompt`: add the special tokens around it; true by default."
    )
    add_special: bool | None = Field(
        None, description="With `content`: add the special tokens around it; false by default."
    )
    parse_special: bool | None = Field(None, description="With `content`: false encodes special tokens as plain text.")
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    with_pieces: bool | None = Field(None, description="Also return the text of each token.")

    @field_validator(*_SOURCES)
    @classmethod
    def _only_one(cls, value: Any, info: ValidationInfo) -> Any:
        other = next((name for name in _SOURCES if name != info.field_name and info.data.get(name) is not None), None)
        if value is not None and other is not None:
            raise ValueError(f"cannot be combined with {other}")
        return value

    @field_validator(*_ONLY_WITH)
    @classmethod
    def _only_with(cls, value: Any, info: ValidationInfo) -> Any:
        source = _ONLY_WITH[info.field_name or ""]
        if value is not None and info.data.get(source) is None:
            raise ValueError(f"is only allowed with {source}")
        return value

    @model_validator(mode="after")
    def _at_least_one(self) -> Self:
        if all(getattr(self, name) is None for name in _SOURCES):
            raise ValueError("must have one of prompt, content and messages")
        return self


class RenderedPrompt(BaseModel):
    """The token ids of a prompt. /v1/chat/completions/render responds with one such object, /v1/completions/render with
    a list of them, one for each prompt.
    """

    token_ids: list[int]


class TokenizeResponse(BaseModel):
    """Response of /tokenize: the token ids, their number, and the model's maximum number of tokens. `pieces`, if the
    request asks for it, has the text of each token, or a list of bytes for a token whose bytes are not valid UTF-8 on
    their own.
    """

    tokens: list[int]
    count: int
    max_model_len: int | None = Field(description="null if it is unknown until an engine has loaded the model.")
    pieces: list[str | list[int]] = Field(default_factory=list, description="Only with with_pieces.")


class TokenizerInfo(BaseModel):
    """Response of /tokenizer_info, with vLLM's field names: the special tokens of a model and its chat template. A
    field is null if the model has no such token or no template.
    """

    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


class DetokenizeRequest(NullFields):
    """Body of /detokenize: the token ids to convert to text, and the model whose tokenizer to use (by default the first
    one).
    """

    model: str | None = Field(None, description="Id of a served model; by default the first one.")
    tokens: Annotated[list[int], elements(MAX_TOKENS)]


class DetokenizeResponse(BaseModel):
    """Response of /detokenize. The text is in vLLM's field `prompt` and in llama.cpp's field `content`."""

    prompt: str
    content: str


class ApplyTemplateRequest(NullFields):
    """Body of /apply-template: the messages, tools and template variables to which to apply the chat template of a
    model (by default the first one).
    """

    model: str | None = Field(None, description="Id of a served model; by default the first one.")
    messages: Messages
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ApplyTemplateResponse(BaseModel):
    """Response of /apply-template: the prompt as text."""

    prompt: str


router = APIRouter(
    route_class=history_route(HISTORY, convert=convert_messages),
    tags=["tokens"],
    responses=error_responses(400, 404, 500, 503),
)


@router.post("/tokenize", response_model=TokenizeResponse)
@router.post("/v1/tokenize", response_model=TokenizeResponse)
async def tokenize(body: TokenizeRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Get the token ids of a text, or of the prompt that the model's chat template makes of messages."""
    served = await services.served(body.model, None if body.messages is None else Task.GENERATE)
    codec = served.codec
    tokens = await context.run_in_time(_tokens(services, body, codec, context))
    max_model_len = served.max_length or services.settings.within(None)
    response: dict[str, Any] = {"tokens": tokens, "count": len(tokens), "max_model_len": max_model_len}
    if body.with_pieces:
        response["pieces"] = await asyncio.to_thread(
            lambda: [_piece(codec.tokenizer.token_bytes(token)) for token in tokens]
        )
    return json_response(response)


@router.post("/detokenize", response_model=DetokenizeResponse)
@router.post("/v1/detokenize", response_model=DetokenizeResponse)
async def detokenize(body: DetokenizeRequest, services: ServicesDep) -> Response:
    """Get the text of token ids. Special tokens are included in the text."""
    codec = (await services.served(body.model)).codec
    text = await asyncio.to_thread(codec.decode, body.tokens)  # in a thread because the list may be long
    return json_response({"prompt": text, "content": text})


@router.get("/tokenizer_info", response_model=TokenizerInfo)
@router.get("/v1/tokenizer_info", response_model=TokenizerInfo)
async def tokenizer_info(services: ServicesDep, model: str | None = None) -> TokenizerInfo:
    """Get the special tokens and the chat template of the model with the name `model`, or of the first model if no name
    is given.
    """
    codec = (await services.served(model)).codec
    named = {name: codec.named_tokens.get(name) for name in TokenizerInfo.model_fields}
    return TokenizerInfo(**{**named, "chat_template": codec.writer.source or None})


@router.post("/apply-template", response_model=ApplyTemplateResponse)
@router.post("/v1/apply-template", response_model=ApplyTemplateResponse)
async def apply_template(body: ApplyTemplateRequest, services: ServicesDep, leniency: LeniencyDep) -> Response:
    """Get the prompt that a model's chat template makes of messages, as text, without generating an answer."""
    codec = (await services.served(body.model, Task.GENERATE)).codec

    def prompt() -> WrittenPrompt:
        tools = None if body.tools is None else [tool_for_template(tool) for tool in body.tools]
        messages = [message.for_template() for message in body.messages]
        return codec.render_chat(messages, tools, body.chat_template_kwargs)

    written = await asyncio.to_thread(prompt)
    leniency.convert(written.converted)
    leniency.note(written.left_out)
    return json_response({"prompt": written.text})


async def _tokens(services: Services, body: TokenizeRequest, codec: TextCodec, context: RequestContext) -> list[int]:
    if body.messages is not None:
        prompt = await encode_messages(
            services, body.messages, lambda: body.tools or (), body.chat_template_kwargs, codec, context
        )
        return prompt.tokens
    if body.prompt is not None:
        return await codec.encode_text(body.prompt, body.add_special_tokens is not False, owner=context.owner)
    assert body.content is not None
    parse_special = body.parse_special is not False
    return await codec.encode_text(
        body.content, body.add_special is True, parse_special=parse_special, param="content", owner=context.owner
    )


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
