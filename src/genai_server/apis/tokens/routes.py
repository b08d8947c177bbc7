"""Endpoints that convert between text and token ids. They need no running engine."""

import asyncio
from typing import Any

from fastapi import APIRouter, Response

from genai_server.apis.shared.chat_history import HISTORY, convert_messages
from genai_server.apis.shared.router import error_responses
from genai_server.apis.tokens.schemas import (
    ApplyTemplateRequest,
    ApplyTemplateResponse,
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    TokenizerInfo,
)
from genai_server.generation.dependencies import RequestContext, RequestContextDep, Services, ServicesDep
from genai_server.generation.parameters.chat_messages import tool_for_template
from genai_server.generation.prompts import encode_messages
from genai_server.http.body_route import LeniencyDep, history_route
from genai_server.http.json_response import json_response
from genai_server.model_files.pooling_model import Task
from genai_server.text.codec import TextCodec
from genai_server.text.prompts.prompt import WrittenPrompt

router = APIRouter(
    route_class=history_route(HISTORY, convert=convert_messages),
    tags=["tokens"],
    responses=error_responses(400, 404, 500, 503),
)


@router.post("/tokenize", response_model=TokenizeResponse)
@router.post("/v1/tokenize", response_model=TokenizeResponse)
async def tokenize(body: TokenizeRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Get the tokens of a text, or of the prompt that the chat template makes of messages."""
    served = await services.served(body.model, None if body.messages is None else Task.GENERATE)
    codec = served.codec
    tokens = await context.run_in_time(_tokens(services, body, codec, context))
    max_model_len = served.max_length or services.settings.within(None)
    found: dict[str, Any] = {"tokens": tokens, "count": len(tokens), "max_model_len": max_model_len}
    if body.with_pieces:
        found["pieces"] = await asyncio.to_thread(
            lambda: [_piece(codec.tokenizer.token_bytes(token)) for token in tokens]
        )
    return json_response(found)


@router.post("/detokenize", response_model=DetokenizeResponse)
@router.post("/v1/detokenize", response_model=DetokenizeResponse)
async def detokenize(body: DetokenizeRequest, services: ServicesDep) -> Response:
    """Get the text of tokens, including special tokens."""
    codec = (await services.served(body.model)).codec
    text = await asyncio.to_thread(codec.decode, body.tokens)  # in a thread because the list may be long
    return json_response({"prompt": text, "content": text})


@router.get("/tokenizer_info", response_model=TokenizerInfo)
@router.get("/v1/tokenizer_info", response_model=TokenizerInfo)
async def tokenizer_info(services: ServicesDep, model: str | None = None) -> TokenizerInfo:
    """Get the special tokens and the chat template of a model, by default of the first one."""
    codec = (await services.served(model)).codec
    named = {name: codec.named_tokens.get(name) for name in TokenizerInfo.model_fields}
    return TokenizerInfo(**{**named, "chat_template": codec.writer.source or None})


@router.post("/apply-template", response_model=ApplyTemplateResponse)
@router.post("/v1/apply-template", response_model=ApplyTemplateResponse)
async def apply_template(body: ApplyTemplateRequest, services: ServicesDep, leniency: LeniencyDep) -> Response:
    """Get the prompt that the chat template makes of messages, as text."""
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
