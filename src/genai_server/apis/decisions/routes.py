"""The endpoint /v1/decisions of OpenAI's API: questions about one input, answered with the probabilities of their
options.

For each question, a prompt and options are written. The options are scored, and their probabilities become the answer.
A question is put at the end of the user's last message, so that the prompts for all questions begin alike: the engine
reads the input together with the first question, and each further question is a short prompt after a cached prefix. The
model would answer with a JSON object with one member, such as `{"answer": true}`.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Annotated

from fastapi.responses import Response
from pydantic import Discriminator, Tag, TypeAdapter

from genai_server.apis.decisions.schemas import (
    ChoiceQuestion,
    DecisionRequest,
    DecisionResponse,
    JsonPart,
    PredicateQuestion,
    Question,
    Value,
    compact,
    key,
    options_of,
)
from genai_server.apis.decisions.sglang import SglangDecisionRequest, SglangDecisionResponse, form_of_body
from genai_server.apis.responses.item_schemas import InputImage
from genai_server.apis.responses.items import given_items, to_messages
from genai_server.apis.shared.router import VersionedRouter
from genai_server.errors import GenerationFailed, InvalidField
from genai_server.generation.dependencies import (
    RequestContext,
    RequestContextDep,
    Services,
    ServicesDep,
    choose_by_prompt,
    choose_engine,
    within,
)
from genai_server.generation.next_tokens import AskedChat, NextTokenScorer, OptionScores, encode_asked, score_options
from genai_server.generation.parameters.chat_messages import ChatMessage, ChatParameters
from genai_server.http.body_route import BodyRoute, validated
from genai_server.http.error_wording import FieldNames
from genai_server.http.json_response import JsonObject, json_response
from genai_server.http.telemetry.usage import Usage
from genai_server.model_files.pooling_model import Task

# The client's names of the chat's fields.
_NAMES = FieldNames({"messages": "input"})


@dataclass(frozen=True)
class Reading:
    """A question together with one order of its options, for which one prompt is written.

    A choice whose answer must not depend on the order of the options has two readings, whose probabilities are
    averaged.
    """

    # The question's index.
    number: int
    question: Question
    # The options in the order in which the model reads them.
    values: Sequence[Value]

    @property
    def num_images(self) -> int:
        """The number of images in the question itself, without those of the input."""
        given = self.question.instructions
        return 0 if isinstance(given, str) else sum(isinstance(part, InputImage) for part in given)

    @property
    def parts(self) -> list[JsonObject]:
        """The question as content parts of a chat message. The first and the last part are texts; they may be the same
        part.
        """
        question, given = self.question, self.question.instructions
        text = "Is the following true? " if isinstance(question, PredicateQuestion) else "Question: "
        found: list[JsonObject] = []
        for part in [given] if isinstance(given, str) else given:
            if isinstance(part, InputImage):
                image = {"url": part.image_url, "detail": part.detail}
                found += [_text_part(text), {"type": "image_url", "image_url": image}]
                text = ""
            elif isinstance(part, JsonPart):
                text += compact(part.data)
            else:
                text += part if isinstance(part, str) else part.text
        return [*found, _text_part(text + self._choices)]

    @property
    def _choices(self) -> str:
        if isinstance(self.question, PredicateQuestion):
            return f"\nAnswer {_answer_text(True)} or {_answer_text(False)}."
        descriptions = {key(value): description for value, description in options_of(self.question)}
        lines = [
            f"\n- {compact(value)}" + (f": {descriptions[key(value)]}" if descriptions[key(value)] else "")
            for value in self.values
        ]
        return f'{"".join(lines)}\nAnswer {{"answer": …}} with one of these.'


def readings(body: DecisionRequest) -> list[Reading]:
    """The readings of all questions of a request: one for each question, or two for a choice that is asked in two
    orders.
    """
    found = []
    for number, question in enumerate(body.questions):
        orders = [[value for value, _ in options_of(question)]]
        if body.order_invariant and isinstance(question, ChoiceQuestion):
            orders = [ascending := sorted(orders[0], key=compact), ascending[::-1]]
        found += [Reading(number, question, values) for values in orders]
    return found


def _answer_text(value: Value) -> str:
    """The text that the model would write to choose this option."""
    return json.dumps({"answer": value}, ensure_ascii=False)


def asked_chats(body: DecisionRequest, asked: Sequence[Reading]) -> list[AskedChat]:
    """The chat request for each of the readings `asked`, with reasoning switched off where the model allows it.

    Raises InvalidField if the input has nothing that the model can read.
    """
    conversation = to_messages(given_items(body.input, {}))
    if not conversation:
        raise InvalidField("input", "must have an item that the model can read")
    *before, last = conversation if conversation[-1].role == "user" else [*conversation, None]
    fields = {"chat_template_kwargs": body.chat_template_kwargs, "cache_salt": body.cache_salt}
    found = []
    for reading in asked:
        messages = [*before, {"role": "user", "content": _continued(last, reading.parts)}]
        chat = ChatParameters.model_validate({"messages": messages, "reasoning_effort": "none", **fields})
        answers = [_answer_text(value) for value in reading.values]
        found.append(AskedChat(chat, answers, f"questions[{reading.number}]", reading.num_images))
    return found


def _continued(last: ChatMessage | None, question: Sequence[JsonObject]) -> str | list[JsonObject]:
    """The content of a user's message that ends with the question: the content of `last`, the user's last message,
    followed by the question. `last` is None if the input does not end with a message of the user.
    """
    first, *others = question
    content = (None if last is None else last.content) or []
    given = (
        [_text_part(content)] if isinstance(content, str) else [part.model_dump(exclude_none=True) for part in content]
    )
    if given and given[-1]["type"] == "text":
        first = _text_part(f"{given.pop()['text']}\n\n{first['text']}")
    parts = [*given, first, *others]
    return parts[0]["text"] if len(parts) == 1 else parts


def _text_part(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def answer(question: Question, scored: Sequence[tuple[Reading, OptionScores]]) -> JsonObject:
    """The answer to a question in OpenAI's format. `scored` has the scores of each reading of the question, that is of
    each order of its options; their probabilities are averaged.
    """
    shares = [
        {key(value): share for value, share in zip(reading.values, scores.probabilities, strict=True)}
        for reading, scores in scored
    ]
    values = [value for value, _ in options_of(question)]
    probabilities = [fmean(one[key(value)] for one in shares) for value in values]
    label_mass = fmean(scores.mass for _, scores in scored)
    whole: JsonObject = {"type": question.type, "name": question.name, "label_mass": label_mass}
    if isinstance(question, PredicateQuestion):
        return whole | {"probability": probabilities[0]}
    count, highest = len(probabilities), max(probabilities)
    whole["confidence"] = max(0.0, (count * highest - 1) / (count - 1))
    if isinstance(question, ChoiceQuestion):
        whole["choice"] = values[probabilities.index(highest)]
        whole["probabilities"] = [
            {"value": value, "probability": share} for value, share in zip(values, probabilities, strict=True)
        ]
        return whole
    whole["score"] = sum(number * share for number, share in enumerate(probabilities))
    whole["probabilities"] = [
        {"value": number, "label": level.label, "probability": share}
        for number, (level, share) in enumerate(zip(question.levels, probabilities, strict=True))
    ]
    return whole


@dataclass(frozen=True)
class Decided:
    """The answers to all questions of a request in OpenAI's format, with the model's name and the token counts."""

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
    chosen, _, engine, _, codec = choice
    engine.require_capacity(1, param="questions", tenant=context.tenant, low_priority=context.low_priority)
    asked = readings(body)
    with context.leniency.with_names(_NAMES):
        async with within(context.deadline):
            asking = await context.in_turn(partial(asked_chats, body, asked), is_long=True)
            prompts = await encode_asked(services, asking, codec, context)
    choice = choose_by_prompt(context, choice, prompts[0].head.text, device=body.device, cache_salt=body.cache_salt)
    scorer = NextTokenScorer(services, context, choice, body, param="questions")
    with closing(scorer):
        scores = await score_options(scorer, prompts, choice.model, temperature=body.temperature or 1.0)
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


AnyDecisionRequest = Annotated[
    Annotated[DecisionRequest, Tag("openai")] | Annotated[SglangDecisionRequest, Tag("sglang")],
    Discriminator(form_of_body),
]
_OPENAI_FORM = TypeAdapter(DecisionRequest)
router = VersionedRouter(BodyRoute, "openai", codes=(504,))


@router.post("/v1/decisions", response_model=DecisionResponse | SglangDecisionResponse)
async def create_decision(body: AnyDecisionRequest, services: ServicesDep, context: RequestContextDep) -> Response:
    """Answer questions about an input by the probabilities of their options, without generating text."""
    if isinstance(body, SglangDecisionRequest):
        request = validated(_OPENAI_FORM, body.openai_form(compact))
        found = await decide(services, request, context)
        whole = {"object": "decisions", "model": found.model, "answers": body.answers(found.answers)}
        return json_response(whole | {"usage": found.usage.to_json()})
    found = await decide(services, body, context)
    return json_response({"model": found.model, "answers": found.answers, "usage": found.usage.to_response_json()})
