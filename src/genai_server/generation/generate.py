"""Generates text: `generate` takes the body of a request and returns its running answers. Read it and `_generate` from
top to bottom to see how a request becomes engine requests.

All refusals are raised here, before the response's headers are sent. The functions at the end compute the values of a
request for the engine: the sampling values with all defaults (`to_sampling`), the tokens that answers must not have
(`with_exclusions`; the fields `allowed_token_ids`, which excludes all other tokens, and `bad_words`), and the rules
about reasoning (`reasoning_rules`). The token budget of reasoning is the request's own, or else that of its API key, or
else the model's.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from msgspec import structs

from genai_server.engine_client.client import EngineClient
from genai_server.engine_client.in_flight import TokenStream
from genai_server.errors import DeadlinePassed, InvalidField, PromptTooLong
from genai_server.generation.answers import Generation, RepetitionDetector, RepetitionRule, RunningAnswer
from genai_server.generation.dependencies import (
    EngineChoice,
    RequestContext,
    Services,
    choose_by_prompt,
    choose_engine,
    within,
)
from genai_server.generation.output_spec import Constraint, OutputSpec, plain_output_spec, reasoning_state
from genai_server.generation.parameters.chat_messages import ChatParameters
from genai_server.generation.parameters.completion_body import CompletionRequest
from genai_server.generation.parameters.sampling_parameters import GenerationFields, SamplingFields, StreamFields
from genai_server.generation.prompts import (
    EchoedPrompt,
    echoed_prompts,
    encode_prediction,
    encode_prompts,
    engine_images,
    with_suffix,
)
from genai_server.media.images.image_files import PreparedImage
from genai_server.messages.generation_request import (
    FinishReason,
    GenerationRequest,
    ModelInfo,
    ReasoningRules,
    Sampling,
)
from genai_server.model_files.pooling_model import Task
from genai_server.model_files.speech_and_vision import Medium
from genai_server.text.answers.answer_text import AnswerText
from genai_server.text.answers.reasoning import ReasoningState
from genai_server.text.codec import TextCodec
from genai_server.text.prompts.prompt import CONTINUE
from genai_server.text.tokenizer import Tokenizer
from genai_server.timing import Stopwatch

Body = ChatParameters | CompletionRequest


async def generate(
    services: Services,
    body: Body,
    context: RequestContext,
    *,
    is_streamed: bool = False,
    keeps_media: bool = False,
    only_complete_calls: bool = False,
    while_connected: bool = True,
) -> Generation:
    """Start all answers to a request for text and return them. When this returns, the engine has accepted them.

    `is_streamed` says whether the answers are sent piece by piece; the engine then reports its progress in reading the
    prompt. The data of images and audio is dropped from `body` once it has been read, unless `keeps_media` is True.
    With `only_complete_calls`, tool calls that the model did not complete are left out, for APIs that cannot express
    them. If `while_connected` is False, the caller watches whether the client is connected.

    Raises RequestError, Unavailable, and ClientLeft as soon as the client has disconnected, after which nothing is left
    running.
    """
    generating = _generate(
        services,
        body,
        context,
        is_streamed=is_streamed,
        keeps_media=keeps_media,
        only_complete_calls=only_complete_calls,
    )
    return await (context.run_while_connected(generating) if while_connected else generating)


@dataclass(frozen=True)
class _Prepared:
    """A request that is ready to be sent to its engine: the engine, an engine request for each answer, and the objects
    that turn the engine's tokens into text. `_prepare` creates it.
    """

    engine: EngineClient
    # One for each answer; those to the same prompt are adjacent.
    requests: list[GenerationRequest]
    # What reads the tokens of each answer.
    texts: list[AnswerText]
    echoes: Sequence[EchoedPrompt | None] = ()
    # The images of all prompts.
    images: Sequence[PreparedImage] = ()
    # What the answers must match, if anything.
    constraint: Constraint | None = None


async def _generate(
    services: Services,
    body: Body,
    context: RequestContext,
    *,
    is_streamed: bool,
    keeps_media: bool,
    only_complete_calls: bool,
) -> Generation:
    # Each answer counts towards the limit of the key.
    num_per_prompt = body.n or 1
    num_answers = num_per_prompt * (len(body.prompts) if isinstance(body, CompletionRequest) else 1)
    multiplier = "prompt" if isinstance(body, CompletionRequest) and num_per_prompt == 1 else "n"
    context.count_answers(num_answers, multiplier)

    # Choose the model, which may have to be loaded first, and an engine with capacity.
    choice = await choose_engine(services, context, body, Task.GENERATE)
    chosen, served, engine, model, codec = choice

    # Refuse early if the request exceeds the engine's capacity as last reported.
    require_capacity = partial(
        engine.require_capacity, num_answers, param=multiplier, tenant=context.tenant, low_priority=context.low_priority
    )
    require_capacity()

    # Prepare prompts and grammars. At its deadline the request ends as it would in the engine's queue.
    try:
        async with within(context.deadline):
            prepared = await _prepare(
                services, body, context, choice, keeps_media=keeps_media, only_complete_calls=only_complete_calls
            )
    except DeadlinePassed:
        prepared = _unprepared(body, context, engine, model, codec)
        streams = [TokenStream(lambda: None) for _ in prepared.requests]
        for stream in streams:
            stream.finish(FinishReason.TIMEOUT)
    else:
        # Submit all requests together: the engine accepts all or none.
        requests = [
            structs.replace(request, timeout=context.deadline.seconds_left, progress=is_streamed)
            for request in prepared.requests
        ]
        try:
            streams = await prepared.engine.in_flight.submit(*requests, files=prepared.images)
        except InvalidField as error:
            # The engine does not know the body's fields.
            if error.param == "grammar" and prepared.constraint is not None:
                raise prepared.constraint.refused(f"the grammar {error.rule}") from None
            raise

    # Read.
    reports_progress = isinstance(body, StreamFields) and bool(body.return_progress)
    first = prepared.requests[0]
    answers = [
        RunningAnswer(
            stream,
            text,
            Stopwatch(context.record.arrival, len(request.prompt)),
            echo=echo,
            reports_progress=reports_progress,
            repetition=_repetition(body, text),
        )
        for stream, text, request, echo in zip(streams, prepared.texts, prepared.requests, prepared.echoes, strict=True)
    ]
    context.record.answered(answers, num_per_prompt, first)
    medium = Medium.IMAGE if codec.vision is None else codec.vision.medium
    media_tokens = sum(len(image.expansion) for image in prepared.images)
    return Generation(chosen.id, answers, num_per_prompt, first.sampling, served.fingerprint, media_tokens, medium)


async def _prepare(
    services: Services,
    body: Body,
    context: RequestContext,
    choice: EngineChoice,
    *,
    keeps_media: bool,
    only_complete_calls: bool,
) -> _Prepared:
    """Encode the prompts of a request, choose the engine that suits them best, check the grammar, and build an engine
    request for each answer. `choice` has the model, and the engine that was chosen before the prompt was known.

    The data of images and audio is dropped from `body` once it has been read, unless `keeps_media` is True. With
    `only_complete_calls`, tool calls that the model did not complete are left out of answers. Work for long prompts and
    grammars waits for its turn among other requests. Raises InvalidField and other errors that refuse the request.
    """
    chosen, served, codec = choice.chosen, choice.served, choice.codec
    num_per_prompt = body.n or 1
    multiplier = "prompt" if isinstance(body, CompletionRequest) and num_per_prompt == 1 else "n"

    # Render and encode the prompts.
    if isinstance(body, ChatParameters):
        of_model = services.settings.thinking_budget_of(served.name)
        default = of_model if context.thinking_budget is None else context.thinking_budget
        body = with_default_budget(body, default, codec)
    if isinstance(body, CompletionRequest) and body.suffix:
        body = await with_suffix(body, codec, context.owner)
    encoded = await encode_prompts(services, body, codec, context)
    if isinstance(body, ChatParameters) and not keeps_media:
        for message in body.messages:
            message.drop_media()
        context.release_body()
    prompts = [prompt.tokens for prompt in encoded]

    # Choose the engine again, by what each has cached of the first prompt.
    reused = [] if body.cache_prompt is False else encoded[0].text
    choice = choose_by_prompt(context, choice, reused, device=body.device, cache_salt=body.cache_salt)
    engine, model = choice.engine, choice.model

    # Resolve all defaults.
    prediction = await encode_prediction(body, codec, model, context.owner)
    sampling = await with_exclusions(to_sampling(body, model), body, codec.tokenizer, model)
    limit = model.max_length
    if (body.max_tokens or 0) > limit and context.leniency.cap("max_tokens", limit - len(prompts[0])):
        body = body.model_copy(update={"max_tokens": None})
    body = with_default_limit(body, services.settings.default_max_tokens, limit)
    requests = [
        to_generation_request(
            body,
            prompt,
            model,
            sampling,
            request_id=context.record.request_id,
            exact=services.settings.exact,
            low_priority=context.low_priority,
        )
        for prompt in prompts
    ]
    lengths = [len(prompt) for prompt in prompts for _ in range(num_per_prompt)]
    engine.require_capacity(
        len(lengths), lengths, param=multiplier, tenant=context.tenant, low_priority=context.low_priority
    )

    # Determine what the answers must match, and check the grammar.
    echoed: list[EchoedPrompt | None] = [None]
    thoughts: ReasoningRules | None = None
    requester = context.requester(body.cache_salt)
    if isinstance(body, CompletionRequest):
        echoed = await context.in_turn(partial(echoed_prompts, body, prompts, codec, model.vocab_size))
        output_spec = await context.in_turn(partial(plain_output_spec, body))
        continues = True
        if output_spec.constraint is not None:
            await output_spec.constraint.check(partial(services.grammars.complaint, requester=requester))
    else:
        output_spec = await services.specs.of(body, codec, prompts[0], requester, context.in_turn)
        output_spec = replace(output_spec, only_complete_calls=only_complete_calls)
        context.leniency.note(output_spec.left_out)
        continues = bool((body.chat_template_kwargs or {}).get(CONTINUE))
        thoughts = await reasoning_rules(body, codec, prompts[0], context)

    # Build an engine request, and what reads its tokens, for each answer.
    cache_salt = context.cache_salt(body.cache_salt)
    engine_requests = [
        structs.replace(
            nth_choice(request, index),
            images=engine_images(prompt, cache_salt),
            grammar=output_spec.grammar,
            needs_grammar=output_spec.needs_grammar,
            adapter=chosen.adapter,
            unique_id=context.record.unique_id,
            key_name=context.record.key_name,
            tenant=context.tenant,
            precedence=context.precedence(body.priority),
            prediction=prediction,
            cache_salt=cache_salt,
            answer_memory=context.answer_memory(body.cache_salt),
            thoughts=thoughts,
        )
        for request, prompt in zip(requests, encoded, strict=True)
        for index in range(num_per_prompt)
    ]
    echoes = [echo for echo in echoed for _ in range(num_per_prompt)]
    texts = [_answer_text(body, codec, output_spec, echo, continues=continues) for echo in echoes]
    images = [placed.image for prompt in encoded for placed in prompt.images]
    return _Prepared(engine, engine_requests, texts, echoes, images, output_spec.constraint)


def _unprepared(
    body: Body, context: RequestContext, engine: EngineClient, model: ModelInfo, codec: TextCodec
) -> _Prepared:
    """Return a substitute for a request whose deadline has passed before it was prepared. Its answers have no tokens,
    but repeat the prompt if the request asks for that (`echo`).
    """
    request = GenerationRequest(
        context.record.request_id,
        [],
        max_tokens=body.max_tokens or 0,
        max_length=model.max_length,
        sampling=to_sampling(body, model),
    )
    echoed: list[EchoedPrompt | None] = [None]
    if isinstance(body, CompletionRequest):
        echoed = [
            EchoedPrompt(prompt, []) if body.echo and isinstance(prompt, str) else None for prompt in body.prompts
        ]
    echoes = [echo for echo in echoed for _ in range(body.n or 1)]
    texts = [_answer_text(body, codec, OutputSpec(), echo, continues=False) for echo in echoes]
    return _Prepared(engine, [request] * len(texts), texts, echoes)


def _answer_text(
    body: Body, codec: TextCodec, output_spec: OutputSpec, echo: EchoedPrompt | None, *, continues: bool
) -> AnswerText:
    """Return the object that makes the text of one answer from the answer's tokens: it decodes them, finds stop
    strings, and tells reasoning and tool calls apart.

    `echo` is the prompt that the answer repeats at its beginning, if any. `continues` says that the answer continues a
    text, so that a space at its beginning is kept.
    """
    return AnswerText(
        codec.tokenizer.decoder(output_spec.shown_tokens, continues=continues),
        body.stop_strings,
        output_spec.parser(),
        codec.tokenizer.token_bytes,
        offset=len(echo.text) if echo else 0,
        max_calls=output_spec.max_calls,
        shows_stop=bool(body.include_stop_str_in_output),
    )


def _repetition(body: SamplingFields, text: AnswerText) -> RepetitionDetector | None:
    """Return the detector that ends an answer when it repeats itself; None if the answer may repeat itself.

    A rule in the field `repetition_detection` of the body applies to the whole answer, and with its maximum pattern
    size 0 to nothing. Without one, reasoning and tool calls are checked, unless the model writes neither or the body
    has `ignore_eos`.
    """
    rule = body.repetition_detection
    if rule is None:
        return RepetitionDetector(None) if text.has_parts and not body.ignore_eos else None
    if not rule.max_pattern_size:
        return None
    return RepetitionDetector(RepetitionRule(max(1, rule.min_pattern_size), rule.max_pattern_size, rule.min_count))


def to_generation_request(
    body: GenerationFields,
    prompt: list[int],
    model: ModelInfo,
    sampling: Sampling,
    *,
    request_id: str,
    exact: bool = False,
    low_priority: bool = False,
) -> GenerationRequest:
    """Build the engine request for one prompt, given as token ids, with all defaults resolved.

    `request_id`, `exact` and `low_priority` become fields of the result; a value of `exact` in the body takes
    precedence. Raises InvalidField and PromptTooLong, which name the field, the limit and the given value.
    """
    source = "prompt" if isinstance(body, CompletionRequest) else "messages"
    limit, limited_by = model.max_length, model.limited_by
    field, max_tokens = _answer_limit(body)
    if max_tokens is not None and max_tokens > limit:
        raise InvalidField(field, "must be at most", limit=limit, limited_by=limited_by, given=max_tokens)
    if not prompt:
        raise InvalidField(source, "must encode to at least one token")
    if len(prompt) >= limit + (max_tokens == 0):
        raise PromptTooLong(source, tokens=len(prompt), limit=limit, limited_by=limited_by)
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
        low_priority=low_priority,
        exact=exact if body.exact is None else body.exact,
        min_tokens=_min_tokens(body, available if max_tokens is None else min(available, max_tokens)),
        top_logprobs=_top_logprobs(body),
        prompt_logprobs=_prompt_logprobs(body, model),
        stop_token_ids=known_tokens(body.stop_token_ids or [], model, "stop_token_ids"),
    )


def with_default_limit(body: Body, default: int, limit: int) -> Body:
    """Return a copy of the body with a limit of `default` tokens for each answer, or the body itself if it has a limit
    of its own or `default` is 0.

    A `default` above `limit`, the maximum length of the model's sequences in tokens, is reduced to it.
    """
    if not default or _answer_limit(body)[1] is not None:
        return body
    return body.model_copy(update={"max_tokens": min(default, limit)})


def _answer_limit(body: GenerationFields) -> tuple[str, int | None]:
    """Return the name of the field that limits the answer's tokens, and its value; None stands for no limit. Raises
    InvalidField if the body has both `max_tokens` and `max_completion_tokens`.
    """
    if isinstance(body, ChatParameters) and body.max_completion_tokens is not None:
        if body.max_tokens is not None:
            raise InvalidField("max_tokens", "cannot be combined with max_completion_tokens")
        return "max_completion_tokens", body.max_completion_tokens
    return "max_tokens", body.default_max_tokens if body.max_tokens is None else body.max_tokens


def _min_tokens(body: SamplingFields, available: int) -> int:
    min_tokens = body.min_tokens or 0
    if min_tokens > available:
        raise InvalidField("min_tokens", f"must be at most {available}, the limit of the answer", given=min_tokens)
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
            "logprobs",
            "cannot be combined with echo: this model does not compute them for prompts (it was built with "
            "prune_lm_head, for example)",
        )
    return is_requested


Tokens = TypeVar("Tokens", bound=Collection[int])
# Fields that have the same names and values in a body.
_SAMPLING_FIELDS = set(Sampling.__struct_fields__) - {"seed", "logit_bias", "allowed_tokens", "bad_words"}


def to_sampling(body: SamplingFields, model: ModelInfo) -> Sampling:
    """Return the sampling values of a request for the engine, with the model's defaults for absent fields.

    Tokens that the request excludes are not yet part of the result; `with_exclusions` adds them. Raises InvalidField if
    `logit_bias` has ids of unknown tokens.
    """
    values = {name: value for name in _SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    bias = {int(token): value for token, value in (body.logit_bias or {}).items() if value}
    known_tokens(bias, model, "logit_bias")
    # The engine's seeds are non-negative; OpenAI's may be negative.
    seed = None if body.seed is None else body.seed % 2**64
    return structs.replace(model.defaults, **values, seed=seed, logit_bias=bias)


def nth_choice(request: GenerationRequest, index: int) -> GenerationRequest:
    """Return the engine request for the answer number `index`, from 0, of several answers to the same prompt. Its seed
    is that of `request` plus `index`, so that the answers differ.
    """
    seed = request.sampling.seed
    if index == 0 or seed is None:
        return request
    return structs.replace(request, sampling=structs.replace(request.sampling, seed=(seed + index) % 2**64))


async def with_exclusions(sampling: Sampling, body: SamplingFields, tokenizer: Tokenizer, model: ModelInfo) -> Sampling:
    """Return the sampling values, completed with the tokens that answers must not have: those of `bad_words`, and all
    but `allowed_token_ids`. Raises InvalidField if these fields of the body name unknown or no tokens.
    """
    if not body.bad_words and not body.allowed_token_ids:
        return sampling

    def exclude() -> Sampling:
        return structs.replace(
            sampling,
            allowed_tokens=_bits(body.allowed_token_ids or [], model),
            bad_words=_encoded(body.bad_words or [], tokenizer, model),
        )

    return await asyncio.to_thread(exclude)


def known_tokens(tokens: Tokens, model: ModelInfo, param: str) -> Tokens:
    """Check that all token ids are in the model's vocabulary and return them unchanged. Raises InvalidField for the
    field `param` if one is not.
    """
    if unknown := [token for token in tokens if token >= model.vocab_size]:
        raise InvalidField(
            param, f"must have token ids below {model.vocab_size}, the model's vocabulary size", given=unknown[0]
        )
    return tokens


def _bits(tokens: list[int], model: ModelInfo) -> bytes:
    """Return a bit field with one bit for each token of the vocabulary, in which the bits of `tokens` are set; b"" if
    `tokens` is empty. Raises InvalidField for unknown tokens.
    """
    if not tokens:
        return b""
    bits = bytearray(-(-model.vocab_size // 8))
    for token in known_tokens(tokens, model, "allowed_token_ids"):
        bits[token // 8] |= 1 << token % 8
    return bytes(bits)


def _encoded(words: Sequence[str], tokenizer: Tokenizer, model: ModelInfo) -> list[list[int]]:
    """Return the token ids of each word in `bad_words`, both as the word is written at the beginning of a text and
    after a space.

    Words that the model cannot write are left out. Special tokens in a word are encoded as such, so that they can be
    banned. Raises InvalidField for a word without tokens.
    """
    forms = [(f"bad_words[{index}]", form) for index, word in enumerate(words) for form in _forms(word)]
    encoded = tokenizer.encode_each([[form] for _, form in forms])
    for (param, _), tokens in zip(forms, encoded, strict=True):
        if not tokens:
            raise InvalidField(param, "has no tokens")
    distinct = dict.fromkeys(map(tuple, encoded))
    return [list(tokens) for tokens in distinct if max(tokens) < model.vocab_size]


def _forms(word: str) -> tuple[str, ...]:
    """Return the word without and with a space in front, which many tokenizers encode to different tokens. A word of
    spaces only is returned as it is.
    """
    stripped = word.lstrip()
    return (stripped, f" {stripped}") if stripped else (word,)


_BUDGET, _MESSAGE = "thinking_token_budget", "reasoning_budget_message"
# The value of a budget for any number of tokens.
_NO_LIMIT = -1
# The budgets of efforts, for templates that know none. Others have no limit.
_BUDGETS = {"minimal": 512, "low": 1024, "medium": 4096}


def with_default_budget(body: ChatParameters, default: int | None, codec: TextCodec) -> ChatParameters:
    """Return a copy of the body with a token budget for reasoning. A body that has a budget already, or whose model
    does not reason, is returned unchanged.

    The budget is `default` tokens; None sets no budget. If the request's `reasoning_effort` stands for a budget,
    because the chat template does not read efforts, the efforts `minimal`, `low` and `medium` have budgets of their
    own.
    """
    if body.thinking_token_budget is not None or codec.dialect.reasoning is None:
        return body
    if body.effort_is_budget and not codec.writer.thinking.efforts:
        default = _BUDGETS.get(body.reasoning_effort or "", default)
    return body if default is None else body.model_copy(update={_BUDGET: default})


async def reasoning_rules(
    body: ChatParameters, codec: TextCodec, prompt: list[int], context: RequestContext
) -> ReasoningRules | None:
    """Return the rules by which the engine finds and ends the reasoning of an answer to the encoded prompt `prompt`;
    None if the format of the model's reasoning is unknown.

    If the format is unknown, a budget for reasoning has no effect: it is left out of lenient requests, and otherwise
    refused with InvalidField. InvalidField is also raised if `reasoning_budget_message`, the text that ends reasoning
    beyond the budget, contains the marker that ends reasoning.
    """
    reasoning, budget, message = codec.dialect.reasoning, body.thinking_token_budget, body.reasoning_budget_message
    if reasoning is None:
        for name, value in ((_BUDGET, budget), (_MESSAGE, message)):
            if value not in (None, 0, _NO_LIMIT) and not context.leniency.leave_out(name):
                raise InvalidField(name, "has no effect with this model, whose reasoning has no known format")
        return None
    message_tokens: list[int] = []
    if message:
        if reasoning.closing in message:
            raise InvalidField(_MESSAGE, f"must not have {reasoning.closing}, which ends reasoning", given=message)
        message_tokens = await codec.encode_text(
            message, add_special=False, parse_special=False, param=_MESSAGE, owner=context.owner
        )
    written = codec.writer.traits(with_tools=bool(body.tools)).reasoning_end
    return ReasoningRules(
        reasoning.opening_pattern,
        reasoning.closing_pattern,
        is_open=reasoning_state(body, codec, prompt) is ReasoningState.INSIDE,
        allows_several=reasoning.thoughts_recur,
        end=[*message_tokens, *codec.tokenizer.encode(reasoning.end(written))],
        later_end=codec.tokenizer.encode(reasoning.later_end(written)),
        budget=None if budget == _NO_LIMIT else budget,
    )
