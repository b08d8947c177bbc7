"""Answers the questions of a request to /v1/decisions by scoring the options of each question.

The engine reads the input together with the first question. Each further question is a short prompt after a cached
prefix.
"""

from contextlib import closing
from dataclasses import dataclass
from functools import partial

from genai_server.apis.decisions.questions import answer, asked_chats, readings
from genai_server.apis.decisions.schemas import DecisionRequest
from genai_server.errors import GenerationFailed
from genai_server.generation.dependencies import RequestContext, Services, choose_engine, within
from genai_server.generation.next_tokens import NextTokenScorer
from genai_server.generation.option_scores import OptionScores, encode_asked, score_options
from genai_server.http.dialect import FieldNames
from genai_server.http.json_response import JsonObject
from genai_server.http.telemetry.usage import Usage
from genai_server.model_files.pooling_model import Task

# The client's names of the chat's fields.
_NAMES = FieldNames({"messages": "input"})


@dataclass(frozen=True)
class Decided:
    """The answers to all questions of a request."""

    # The model's name in responses.
    model: str
    answers: list[JsonObject]
    usage: Usage


async def decide(services: Services, body: DecisionRequest, context: RequestContext) -> Decided:
    """Answer all questions of a request.

    Raises RequestError, Unavailable, GenerationFailed if no question can be answered, and ClientLeft when the client
    disconnects, after which nothing is left running.
    """
    return await context.run_while_connected(_decide(services, body, context))


async def _decide(services: Services, body: DecisionRequest, context: RequestContext) -> Decided:
    context.count_answers(len(body.questions), "questions")
    choice = await choose_engine(services, context, body, Task.GENERATE)
    chosen, _, engine, model, codec = choice
    engine.require_capacity(1, param="questions", tenant=context.tenant, low_priority=context.low_priority)
    asked = readings(body)
    with context.leniency.with_names(_NAMES):
        async with within(context.deadline):
            asking = await context.in_turn(partial(asked_chats, body, asked), is_long=True)
            prompts = await encode_asked(services, asking, codec, context)
    scorer = NextTokenScorer(services, context, choice, body, param="questions")
    with closing(scorer):
        scores = await score_options(scorer, prompts, model, temperature=body.temperature or 1.0)
    answers: list[JsonObject] = []
    errors: list[GenerationFailed] = []
    for number, question in enumerate(body.questions):
        own = [(reading, each) for reading, each in zip(asked, scores, strict=True) if reading.number == number]
        scored = [(reading, each) for reading, each in own if isinstance(each, OptionScores)]
        if len(scored) == len(own):
            answers.append(answer(question, scored))
        else:
            errors += [each for _, each in own if isinstance(each, GenerationFailed)][:1]
            error = {"code": errors[-1].code, "message": errors[-1].message}
            answers.append({"type": "refusal", "name": question.name, "error": error})
    if len(errors) == len(answers):
        raise errors[0]
    return Decided(chosen.id, answers, scorer.usage)
