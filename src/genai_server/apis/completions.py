"""The endpoint /v1/completions of OpenAI's API, which continues a text without a chat template, and the builder of its
response objects (https://platform.openai.com/docs/api-reference/completions).
"""

from fastapi.responses import Response

from genai_server.answer_parts import Part, ScoredToken, WholeAnswer
from genai_server.apis.chat_completions import COMPLETIONS, ChoicesBuilder, choices_response, openai_reason
from genai_server.apis.shared.router import VersionedRouter
from genai_server.apis.tokens import RenderedPrompt
from genai_server.generation.answers import Ending
from genai_server.generation.dependencies import RequestContextDep, ServicesDep
from genai_server.generation.parameters.completion_body import CompletionRequest
from genai_server.generation.prompts import encode_prompts
from genai_server.http.body_route import lenient_route
from genai_server.http.json_response import JsonObject, json_response
from genai_server.http.streams import STREAMS
from genai_server.http.telemetry.request_record import Usage
from genai_server.model_files.pooling_model import Task

router = VersionedRouter(lenient_route(COMPLETIONS), "openai")


@router.post("/v1/completions", responses=STREAMS)
@router.post("/api/v0/completions", include_in_schema=False)  # LM Studio's name
async def create_completion(body: CompletionRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Create a text completion: continue one or more prompts, and return the answers as one object or as a stream of
    chunks.
    """
    is_long = bool(body.echo) or body.logprobs is not None
    return await choices_response(services, body, context, CompletionBuilder, id_prefix="cmpl-", is_long=is_long)


@router.post("/v1/completions/render", response_model=list[RenderedPrompt])
async def render_completion(body: CompletionRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Get the token ids of each prompt without generating an answer, as in vLLM. Routers that track which prompts are
    cached where call this endpoint. It needs no running engine.
    """
    served = await services.served(body.model, Task.GENERATE)
    prompts = await context.run_in_time(encode_prompts(services, body, served.codec, context))
    return json_response([{"token_ids": prompt.tokens} for prompt in prompts])


class CompletionBuilder(ChoicesBuilder):
    """Builds the response to a text completion in OpenAI's format, either the complete object or
    the chunks of a stream.
    """

    complete_object = chunk_object = "text_completion"
    text_key = "text"

    def choice(self, index: int, answer: WholeAnswer, ending: Ending | None) -> JsonObject:
        """Return the entry in the field `choices` for a complete answer, or, if `ending` is None, for the next part of
        an answer in a stream. `index` is the answer's position among all answers.
        """
        ended = openai_reason(ending) if ending else {"finish_reason": None}
        return {"index": index, "text": answer.content, "logprobs": self._logprobs(answer.tokens), **ended}

    def first(self, num_answers: int) -> list[JsonObject]:
        return []

    def part(self, index: int, parts: list[Part], tokens: list[ScoredToken], usage: Usage | None = None) -> JsonObject:
        more = WholeAnswer(tokens=tokens)
        for part in parts:
            more.add(part)
        return self._chunk(self.choice(index, more, None), usage)

    def last(self, index: int, ending: Ending, usage: Usage | None = None) -> JsonObject:
        return self._chunk(self.choice(index, WholeAnswer(), ending), usage)

    def _logprobs(self, tokens: list[ScoredToken]) -> JsonObject | None:
        if not self._has_logprobs:
            return None
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                None if token.logprob is None else {other.text: other.logprob for other in reversed(token.top)}
                for token in tokens
            ],
            "text_offset": [token.offset for token in tokens],
        }
