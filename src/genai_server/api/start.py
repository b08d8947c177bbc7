"""Starts the answers to one request: every refusal is raised here, before any headers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from genai_server.api.answer import Answer
from genai_server.api.caller import Caller
from genai_server.api.catalog import Choice
from genai_server.api.choices import Choices
from genai_server.api.served_model import ServedModel
from genai_server.api.services import Services
from genai_server.api.shape import Shape, chat_shape, offered_tools, plain_shape
from genai_server.engines.client import EngineClient
from genai_server.engines.stream import TokenStream
from genai_server.errors import InvalidField
from genai_server.generation import GenerationRequest, ModelInfo
from genai_server.openai_api.schemas.chat import ChatParameters
from genai_server.openai_api.schemas.completions import CompletionRequest
from genai_server.openai_api.schemas.sampling import GenerationFields, StreamFields
from genai_server.openai_api.translate import Policy, nth_choice, to_generation_request
from genai_server.parts import ScoredToken
from genai_server.text.answer_text import AnswerText
from genai_server.text.codec import TextCodec
from genai_server.text.prompt import CONTINUE
from genai_server.text.stop import StopStrings
from genai_server.timing import Stopwatch


@dataclass(frozen=True)
class Prompt:
    """A prompt of /v1/completions: its text, and the bytes of each of its tokens."""

    text: str
    tokens: list[bytes]

    def scored(self, following: list[ScoredToken]) -> list[ScoredToken]:
        """All tokens, those but the first with the log probabilities that are given; none without them."""
        if len(following) != len(self.tokens) - 1:
            return []
        found, offset = [], 0
        for token in [ScoredToken(self.tokens[0], None), *following]:
            found.append(replace(token, offset=min(offset, len(self.text))))
            offset += len(token.text)
        return found


async def start_chat(services: Services, body: ChatParameters, caller: Caller, *, is_streamed: bool = False) -> Choices:
    """The answers of an assistant. Raises RequestError, Unavailable and ClientLeft."""
    return await caller.waits_for(_start_chat(services, body, caller, is_streamed=is_streamed))


async def _start_chat(services: Services, body: ChatParameters, caller: Caller, *, is_streamed: bool) -> Choices:
    start = await _begin(services, body, caller, body.n or 1)
    prompt = await encode_chat(body, start.codec)
    requests = start.requests([prompt], is_streamed=is_streamed)
    # To compile a grammar may take half a second, in which the others go on.
    shape = await asyncio.to_thread(chat_shape, body, start.codec, prompt)
    continues = bool((body.chat_template_kwargs or {}).get(CONTINUE))
    answers = await start.answers(requests, body.n or 1, shape, continues=continues)
    return Choices(caller.request_id, start.name, answers, body.n or 1)


async def start_completion(services: Services, body: CompletionRequest, caller: Caller) -> tuple[list[Prompt], Choices]:
    """What follows on texts, and the prompts themselves. Raises RequestError, Unavailable and ClientLeft."""
    return await caller.waits_for(_start_completion(services, body, caller))


async def _start_completion(
    services: Services, body: CompletionRequest, caller: Caller
) -> tuple[list[Prompt], Choices]:
    start = await _begin(services, body, caller, len(body.prompts) * (body.n or 1))
    codec = start.codec
    prompts, encoded = [], []
    for given in body.prompts:
        tokens = (
            given
            if isinstance(given, list)
            else await codec.encode_text(given, add_special=body.add_special_tokens is not False)
        )
        if strange := [token for token in tokens if token >= start.model.vocab_size]:
            raise InvalidField(
                f"prompt must have ids below {start.model.vocab_size}, the model's vocabulary, given {strange[0]}",
                param="prompt",
            )
        text = given if isinstance(given, str) else codec.decode(tokens, param="prompt")
        prompts.append(Prompt(text, [codec.token_bytes(token) for token in tokens] if body.echo else []))
        encoded.append(tokens)
    requests = start.requests(encoded, is_streamed=bool(body.stream))
    shape = await asyncio.to_thread(plain_shape, body)
    offsets = [len(prompt.text) if body.echo else 0 for prompt in prompts]
    answers = await start.answers(requests, body.n or 1, shape, offsets=offsets, continues=True)
    return prompts, Choices(caller.request_id, start.name, answers, body.n or 1)


async def find_served(services: Services, model: str | None) -> ServedModel:
    """The model that a request names, for its text side alone. Raises ModelNotFound, and Unavailable."""
    return await services.models.serving(model, services.settings.request_timeout)


async def encode_chat(body: ChatParameters, codec: TextCodec) -> list[int]:
    """The prompt of a chat. Raises InvalidField."""
    messages = [message.for_template() for message in body.messages]
    tools = [tool.model_dump(exclude_none=True) for tool in offered_tools(body, codec)]
    return await codec.encode_chat(messages, tools, _template_variables(body, codec))


async def _begin(services: Services, body: GenerationFields, caller: Caller, num_answers: int) -> "_Start":
    """See that the request may begin, and that its model is there. Raises RequestError and Unavailable."""
    services.drain.require_open()
    services.models.choose(body.model)
    if body.timeout is not None:
        caller.deadline.tighten(body.timeout, param="timeout")
    served = await services.models.serving(body.model, caller.deadline.seconds_left)
    # Anew, for meanwhile the adapter may have been unloaded.
    return _Start(services, served, services.models.choose(body.model), body, caller, num_answers)


class _Start:
    """One request on its way to an engine, which is chosen at once. Raises RequestError and Unavailable.

    Where it is known that the engine would not take so many answers, nothing is done for them.
    """

    def __init__(
        self,
        services: Services,
        served: ServedModel,
        chosen: Choice,
        body: GenerationFields,
        caller: Caller,
        num_answers: int,
    ) -> None:
        self.services = services
        self.body = body
        self.caller = caller
        self.name = chosen.id
        self.adapter = chosen.adapter
        self.engine: EngineClient
        self.model: ModelInfo
        self.engine, self.model = served.router.pick(body.device)
        caller.account.model, caller.account.device = self.name, self.engine.device
        self.num_answers = num_answers
        # What makes several answers of one request.
        self.field = "prompt" if isinstance(body, CompletionRequest) and body.n in (None, 1) else "n"
        self.engine.require_room(num_answers, param=self.field)
        self.codec: TextCodec = served.codec_of(self.engine.device)

    def requests(self, prompts: Sequence[list[int]], *, is_streamed: bool) -> list[GenerationRequest]:
        """What the engine shall do for each prompt; its grammar is still to come.

        Raises InvalidField and PromptTooLong, and QueueFull where it is known that the engine would not take all
        answers to these.
        """
        policy = Policy(self.services.settings.max_length, self.services.settings.exact)
        found = [
            to_generation_request(
                self.body,
                prompt,
                self.model,
                request_id=self.caller.request_id,
                policy=policy,
                progress=is_streamed,
            )
            for prompt in prompts
        ]
        each = self.num_answers // len(prompts)
        lengths = [len(prompt) for prompt in prompts for _ in range(each)]
        self.engine.require_room(self.num_answers, lengths, param=self.field)
        return found

    async def answers(
        self,
        requests: Sequence[GenerationRequest],
        num_per_prompt: int,
        shape: Shape,
        *,
        offsets: Sequence[int] = (0,),
        continues: bool = False,
    ) -> list[Answer]:
        """Hand everything over, or nothing: if one request is refused, those before it are ended again.

        `offsets` are the characters of text that are told before the answers to each prompt; with `continues` these go
        on from a text rather than begin one.
        """
        tells_progress = isinstance(self.body, StreamFields) and bool(self.body.return_progress)
        started: list[Answer] = []
        try:
            for request, offset in zip(requests, offsets, strict=True):
                for index in range(num_per_prompt):
                    stopwatch = Stopwatch(self.services.clock, len(request.prompt))
                    text = AnswerText(
                        self.codec.decoder(shape.shown_tokens, continues=continues),
                        StopStrings(self.body.stop_strings),
                        shape.parser(),
                        self.codec.token_bytes,
                        offset=offset,
                        most_calls=shape.most_calls,
                    )
                    choice = structs.replace(
                        nth_choice(request, index),
                        grammar=shape.grammar,
                        timeout=self.caller.deadline.seconds_left,
                        adapter=self.adapter,
                    )
                    stream = await self._submit(choice, shape)
                    started.append(Answer(stream, text, stopwatch, tells_progress=tells_progress))
        except BaseException:
            for answer in started:
                answer.close()
            raise
        self.caller.account.answered(started, num_per_prompt, requests[0])
        return started

    async def _submit(self, request: GenerationRequest, shape: Shape) -> TokenStream:
        try:
            return await self.engine.submit(request)
        except InvalidField as error:
            if error.param == "grammar" and shape.constraint is not None:  # the engine knows no field of the body
                raise shape.constraint.refused(error.message) from None
            raise


def _template_variables(body: ChatParameters, codec: TextCodec) -> dict[str, Any]:
    """The variables that a request gives the chat template. Raises InvalidField for an effort that it does not know."""
    variables = dict(body.chat_template_kwargs or {})
    effort = body.reasoning_effort
    if effort is None:
        return variables
    if codec.reads("reasoning_effort"):
        variables.setdefault("reasoning_effort", effort)
    elif codec.reads("enable_thinking"):
        variables.setdefault("enable_thinking", effort != "none")
    elif effort != "none":
        raise InvalidField(
            f"reasoning_effort {effort!r} has no effect with this model: its chat template knows no reasoning",
            param="reasoning_effort",
        )
    return variables
