"""OpenAI's /v1/completions, which continues a text."""

from fastapi.responses import Response

from genai_server.apis.chat_completions.choices import choices_response
from genai_server.apis.chat_completions.schemas import leave_out_of_completion
from genai_server.apis.completions.response import CompletionBuilder
from genai_server.apis.shared.completion_body import CompletionRequest
from genai_server.apis.shared.router import VersionedRouter
from genai_server.apis.tokens.schemas import RenderedPrompt
from genai_server.generation.dependencies import TheRequestContext, TheServices
from genai_server.generation.prompts import encode_prompts
from genai_server.http.body_route import TheLeniency, lenient_route
from genai_server.http.json_response import json_response
from genai_server.http.sse import STREAMS
from genai_server.pooling_model import Task

router = VersionedRouter(lenient_route(leave_out_of_completion), "openai")


@router.post("/v1/completions", responses=STREAMS)
async def create_completion(
    body: CompletionRequest,
    services: TheServices,
    context: TheRequestContext,
) -> Response:
    """OpenAI's text completion, complete or as a stream of chunks."""
    is_long = bool(body.echo) or body.logprobs is not None
    return await choices_response(services, body, context, CompletionBuilder, id_prefix="cmpl", is_long=is_long)


@router.post("/v1/completions/render", response_model=list[RenderedPrompt])
async def render_completion(body: CompletionRequest, services: TheServices, leniency: TheLeniency) -> Response:
    """The tokens of each prompt, for routers that index prefixes, as in vLLM. Needs no engine."""
    served = await services.served(body.model, Task.GENERATE)
    prompts = await encode_prompts(body, served.codec, leniency)
    return json_response([{"token_ids": tokens} for tokens in prompts])
