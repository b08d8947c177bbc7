"""The path of a request from its body to its running answers: read `generate` from top to bottom.

All refusals are raised here, before the response's headers are sent.
"""

import asyncio
from dataclasses import replace

from msgspec import structs

from genai_server.apis.shared.chat_messages import ChatParameters
from genai_server.apis.shared.completion_body import CompletionRequest
from genai_server.apis.shared.sampling_parameters import GenerationFields, SamplingFields, StreamFields
from genai_server.errors import InvalidField, PromptTooLong
from genai_server.generation.answers import Generation, RunningAnswer
from genai_server.generation.dependencies import RequestContext, Services, choose_engine
from genai_server.generation.excluded_tokens import known_tokens, with_exclusions
from genai_server.generation.infill import with_suffix
from genai_server.generation.output_spec import OutputSpec, plain_output_spec
from genai_server.generation.prompts import (
    EchoedPrompt,
    echoed_prompts,
    encode_prediction,
    encode_prompts,
    engine_images,
)
from genai_server.messages.generation_request import GenerationRequest, ModelInfo, Sampling
from genai_server.pooling_model import Task
from genai_server.text.answers.answer_text import AnswerText
from genai_server.text.codec import TextCodec
from genai_server.text.prompts.prompt import CONTINUE
from genai_server.timing import Stopwatch
from genai_server.vision_model import Medium

Body = ChatParameters | CompletionRequest
# Fields that have the same names and values in a body.
_SAMPLING_FIELDS = set(Sampling.__struct_fields__) - {"seed", "logit_bias", "allowed_tokens", "bad_words"}


async def generate(
    services: Services,
    body: Body,
    context: RequestContext,
    *,
    is_streamed: bool = False,
    keeps_media: bool = False,
    only_complete_calls: bool = False,
) -> Generation:
    """Start all answers to a request. On return, the engine has accepted them.

    The data of images and sounds is dropped from the body once it has been read, unless the caller keeps it
    (`keeps_media`). `only_complete_calls` is for APIs in which a tool call cannot be shown as incomplete (see
    AnswerParser).

    Raises RequestError, Unavailable, and ClientLeft as soon as the client has disconnected, after which nothing is left
    running.
    """
    return await context.run_while_connected(
        _generate(
            services,
            body,
            context,
            is_streamed=is_streamed,
            keeps_media=keeps_media,
            only_complete_calls=only_complete_calls,
        )
    )


async def _generate(
    services: Services,
    body: Body,
    context: RequestContext,
    *,
    is_streamed: bool,
    keeps_media: bool,
    only_complete_calls: bool,
) -> Generation:
    # Choose the model, which may have to be loaded first, and the engine.
    chosen, served, engine, model, codec = await choose_engine(services, context, body, Task.GENERATE)

    # Refuse early if the request exceeds the engine's capacity as last reported.
    num_per_prompt = body.n or 1
    num_answers = num_per_prompt * (len(body.prompts) if isinstance(body, CompletionRequest) else 1)
    multiplier = "prompt" if isinstance(body, CompletionRequest) and num_per_prompt == 1 else "n"
    engine.require_capacity(num_answers, param=multiplier, background=context.background)

    # Render and encode the prompts; resolve all defaults.
    if isinstance(body, CompletionRequest) and body.suffix:
        body = await with_suffix(body, codec)
    encoded = await encode_prompts(services, body, codec, context.leniency)
    if isinstance(body, ChatParameters) and not keeps_media:
        for message in body.messages:
            message.drop_media()
        context.release_body()
    prompts = [prompt.tokens for prompt in encoded]
    prediction = await encode_prediction(body, codec, model)
    sampling = await with_exclusions(to_sampling(body, model), body, codec.tokenizer, model)
    limit = model.max_length
    if (body.max_tokens or 0) > limit and context.leniency.cap("max_tokens", limit - len(prompts[0])):
        body = body.model_copy(update={"max_tokens": None})
    requests = [
        to_generation_request(
            body,
            prompt,
            model,
            sampling,
            request_id=context.record.request_id,
            exact=services.settings.exact,
            background=context.background,
        )
        for prompt in prompts
    ]
    lengths = [len(prompt) for prompt in prompts for _ in range(num_per_prompt)]
    engine.require_capacity(num_answers, lengths, param=multiplier, background=context.background)

    # Determine what the answers must match, and check the grammar.
    echoed: list[EchoedPrompt | None] = [None]
    if isinstance(body, CompletionRequest):
        echoed = await asyncio.to_thread(echoed_prompts, body, prompts, codec, model.vocab_size)
        output_spec = await asyncio.to_thread(plain_output_spec, body)
        continues = True
        if output_spec.constraint is not None:
            await output_spec.constraint.check(services.grammars)
    else:
        output_spec = await services.specs.of(body, codec, prompts[0])
        output_spec = replace(output_spec, only_complete_calls=only_complete_calls)
        context.leniency.note(output_spec.left_out)
        continues = bool((body.chat_template_kwargs or {}).get(CONTINUE))

    # Build an engine request, and what reads its tokens, for each answer.
    cache_salt = context.cache_salt(body.cache_salt)
    asked = [
        structs.replace(
            nth_choice(request, index),
            images=engine_images(prompt, cache_salt),
            grammar=output_spec.grammar,
            needs_grammar=output_spec.needs_grammar,
            timeout=context.deadline.seconds_left,
            adapter=chosen.adapter,
            unique_id=context.record.unique_id,
            key_name=context.record.key_name,
            prediction=prediction,
            cache_salt=cache_salt,
            answer_memory=context.answer_memory(body.cache_salt),
            progress=is_streamed,
        )
        for request, prompt in zip(requests, encoded, strict=True)
        for index in range(num_per_prompt)
    ]
    echoes = [echo for echo in echoed for _ in range(num_per_prompt)]
    texts = [_answer_text(body, codec, output_spec, echo, continues=continues) for echo in echoes]
    stopwatches = [Stopwatch(context.record.arrival, len(request.prompt)) for request in asked]

    # Submit all requests together: the engine accepts all or none.
    try:
        streams = await engine.in_flight.submit(*asked)
    except InvalidField as error:
        # The engine does not know the body's fields.
        if error.param == "grammar" and output_spec.constraint is not None:
            raise output_spec.constraint.refused(error.message) from None
        raise

    # Read.
    reports_progress = isinstance(body, StreamFields) and bool(body.return_progress)
    answers = [
        RunningAnswer(stream, text, stopwatch, echo=echo, reports_progress=reports_progress)
        for stream, text, stopwatch, echo in zip(streams, texts, stopwatches, echoes, strict=True)
    ]
    images = [placed.image for prompt in encoded for placed in prompt.images]
    context.record.answered(answers, num_per_prompt, requests[0])
    medium = Medium.IMAGE if codec.vision is None else codec.vision.medium
    return Generation(chosen.id, answers, num_per_prompt, requests[0].sampling, served.fingerprint, images, medium)


def _answer_text(
    body: Body, codec: TextCodec, output_spec: OutputSpec, echo: EchoedPrompt | None, *, continues: bool
) -> AnswerText:
    """The text of one answer, which follows `echo`."""
    return AnswerText(
        codec.tokenizer.decoder(output_spec.shown_tokens, continues=continues),
        body.stop_strings,
        output_spec.parser(),
        codec.tokenizer.token_bytes,
        offset=len(echo.text) if echo else 0,
        max_calls=output_spec.max_calls,
        shows_stop=bool(body.include_stop_str_in_output),
    )


def to_generation_request(
    body: GenerationFields,
    prompt: list[int],
    model: ModelInfo,
    sampling: Sampling,
    *,
    request_id: str,
    exact: bool = False,
    background: bool = False,
) -> GenerationRequest:
    """The engine request for one prompt, with all defaults resolved. See GenerationRequest for the arguments.

    `exact` is the default of the body's field.

    Raises InvalidField and PromptTooLong, which name the field, the limit and the given value.
    """
    source = "prompt" if isinstance(body, CompletionRequest) else "messages"
    encoded = "the prompt encodes to" if source == "prompt" else "the messages encode to"
    limit, limited_by = model.max_length, model.limited_by
    field, max_tokens = _answer_limit(body)
    if max_tokens is not None and max_tokens > limit:
        raise InvalidField(f"{field} must be at most {limit} ({limited_by}), given {max_tokens}", param=field)
    if not prompt:
        raise InvalidField(f"{encoded} zero tokens", param=source)
    if len(prompt) >= limit + (max_tokens == 0):
        raise PromptTooLong(
            f"{encoded} {len(prompt)} tokens; the limit for prompt and answer together is {limit} ({limited_by})",
            param=source,
            tokens=len(prompt),
            limit=limit,
            limited_by=limited_by,
        )
    available = limit - len(prompt)
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        max_tokens=available if max_tokens is None else max_tokens,
        max_length=limit,
        sampling=sampling,
        ignore_eos=bool(body.ignore_eos),
        cache_prompt=body.cache_prompt is not False,
        priority=body.priority or 0,
        background=background,
        exact=exact if body.exact is None else body.exact,
        min_tokens=_min_tokens(body, available if max_tokens is None else min(available, max_tokens)),
        top_logprobs=_top_logprobs(body),
        prompt_logprobs=_prompt_logprobs(body, model),
        stop_token_ids=known_tokens(body.stop_token_ids or [], model, "stop_token_ids"),
    )


def _answer_limit(body: GenerationFields) -> tuple[str, int | None]:
    """The name and value of the field that limits the answer's tokens."""
    if isinstance(body, ChatParameters) and body.max_completion_tokens is not None:
        if body.max_tokens is not None:
            raise InvalidField("max_tokens and max_completion_tokens cannot be combined", param="max_tokens")
        return "max_completion_tokens", body.max_completion_tokens
    return "max_tokens", body.default_max_tokens if body.max_tokens is None else body.max_tokens


def _min_tokens(body: SamplingFields, available: int) -> int:
    min_tokens = body.min_tokens or 0
    if min_tokens > available:
        raise InvalidField(
            f"min_tokens must be at most {available}, the limit of the answer, given {min_tokens}", param="min_tokens"
        )
    return min_tokens


def _top_logprobs(body: GenerationFields) -> int | None:
    if isinstance(body, CompletionRequest):
        return body.logprobs
    if isinstance(body, ChatParameters) and body.logprobs:
        return body.top_logprobs or 0
    return None


def _prompt_logprobs(body: GenerationFields, model: ModelInfo) -> bool:
    is_requested = isinstance(body, CompletionRequest) and bool(body.echo) and body.logprobs is not None
    if is_requested and not model.scores_prompts:
        raise InvalidField(
            "logprobs cannot be combined with echo: this model does not compute them for prompts (it was built with "
            "prune_lm_head, for example)",
            param="logprobs",
        )
    return is_requested


def to_sampling(body: SamplingFields, model: ModelInfo) -> Sampling:
    """The request's sampling values, with the model's defaults for absent fields; `with_exclusions` completes them.

    Raises InvalidField.
    """
    given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    bias = {int(token): value for token, value in (body.logit_bias or {}).items() if value}
    known_tokens(bias, model, "logit_bias")
    # The engine's seeds are non-negative; OpenAI's may be negative.
    seed = None if body.seed is None else body.seed % 2**64
    return structs.replace(model.defaults, **given, seed=seed, logit_bias=bias)


def nth_choice(request: GenerationRequest, index: int) -> GenerationRequest:
    """The request for one of several answers to a prompt, with a seed of its own."""
    seed = request.sampling.seed
    if index == 0 or seed is None:
        return request
    return structs.replace(request, sampling=structs.replace(request.sampling, seed=(seed + index) % 2**64))
