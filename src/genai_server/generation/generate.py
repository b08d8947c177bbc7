"""The path of a request from its body to its running answers: read `generate` from top to bottom.

All refusals are raised here, before the response's headers are sent.
"""

import asyncio

from msgspec import structs

from genai_server.apis.shared.chat_messages import ChatParameters
from genai_server.apis.shared.completion_body import CompletionRequest
from genai_server.apis.shared.sampling_parameters import StreamFields
from genai_server.errors import InvalidField
from genai_server.generation.answers import Generation, RunningAnswer
from genai_server.generation.dependencies import RequestContext, Services
from genai_server.generation.engine_request import nth_choice, to_generation_request
from genai_server.generation.infill import with_suffix
from genai_server.generation.output_spec import OutputSpec, plain_output_spec
from genai_server.generation.prompts import (
    EchoedPrompt,
    echoed_prompts,
    encode_prediction,
    encode_prompts,
    engine_images,
)
from genai_server.pooling_model import Task
from genai_server.text.answers.answer_text import AnswerText
from genai_server.text.codec import TextCodec
from genai_server.text.prompts.prompt import CONTINUE
from genai_server.timing import Stopwatch

Body = ChatParameters | CompletionRequest


async def generate(services: Services, body: Body, context: RequestContext, *, is_streamed: bool = False) -> Generation:
    """Start all answers to a request. On return, the engine has accepted them.

    Raises RequestError, Unavailable, and ClientLeft as soon as the client has disconnected, after which nothing is left
    running.
    """
    return await context.run_while_connected(_generate(services, body, context, is_streamed=is_streamed))


async def _generate(services: Services, body: Body, context: RequestContext, *, is_streamed: bool) -> Generation:
    services.drain.require_open()
    settings = services.settings

    # Choose the model, which may have to be loaded first, and the engine.
    chosen = services.models.choose_for(body.model, Task.GENERATE)
    if body.timeout is not None:
        context.deadline.tighten(body.timeout, param="timeout")
    with context.record.arrival.loading():
        chosen, served = await services.models.serving(chosen, context.deadline.seconds_left)
    engine, model = served.router.pick(body.device, background=context.background)
    context.record.model, context.record.device = chosen.id, engine.device
    codec = served.codec_of(engine.device)

    # Refuse early if the request exceeds the engine's capacity as last reported.
    num_per_prompt = body.n or 1
    num_answers = num_per_prompt * (len(body.prompts) if isinstance(body, CompletionRequest) else 1)
    multiplier = "prompt" if isinstance(body, CompletionRequest) and num_per_prompt == 1 else "n"
    engine.require_capacity(num_answers, param=multiplier, background=context.background)

    # Render and encode the prompts; resolve all defaults.
    if isinstance(body, CompletionRequest) and body.suffix:
        body = await with_suffix(body, codec)
    encoded = await encode_prompts(services, body, codec, context.leniency)
    prompts = [prompt.tokens for prompt in encoded]
    prediction = await encode_prediction(body, codec, model)
    limit = model.max_length
    if (body.max_tokens or 0) > limit and context.leniency.cap("max_tokens", limit - len(prompts[0])):
        body = body.model_copy(update={"max_tokens": None})
    requests = [
        to_generation_request(
            body,
            prompt,
            model,
            request_id=context.request_id,
            exact=settings.exact,
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
            unique_id=context.unique_id,
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
    return Generation(chosen.id, answers, num_per_prompt, requests[0].sampling, served.fingerprint, images)


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
    )
