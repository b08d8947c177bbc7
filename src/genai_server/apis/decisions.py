"""The endpoint /v1/decisions of OpenAI's API: questions about one input, answered with the probabilities of their
options. The bodies are OpenAI's (openai-python 3.57: `types/decision_create_params.py`, `types/decision.py`) or
SGLang's (sglang 0.5.23: `srt/entrypoints/openai/protocol.py`, `serving_decisions.py`), in which questions have ids and
the answers are members of an object.

For each question, a prompt and the texts of its options are written; the model would answer with a JSON object with one
member, such as `{"answer": true}`. Instead of generating, the server computes the probability of each option's text,
and these probabilities become the answer. A question is put at the end of the user's last message, so that the prompts
for all questions begin alike: the engine reads the input together with the first question, and each further question is
a short prompt after a cached prefix.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Annotated, Any, Literal, Self

from fastapi.responses import Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Field, Tag, TypeAdapter, model_validator

from genai_server.apis.responses.item_schemas import Input, InputImage, InputText
from genai_server.apis.responses.items import to_messages, to_response_items
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
from genai_server.generation.next_tokens import (
    ChatWithOptions,
    NextTokenScorer,
    OptionScores,
    encode_chats_with_options,
    score_options,
)
from genai_server.generation.parameters.base import (
    NonEmptyText,
    ResultFields,
    StrictModel,
    TaggedUnion,
    Text,
    WithoutEffect,
    elements,
    field_error,
    writable,
)
from genai_server.generation.parameters.chat_messages import MAX_PARTS, ChatMessage, ChatParameters, ImageUrl
from genai_server.generation.parameters.sampling_parameters import MAX_SALT_LENGTH
from genai_server.http.body_route import BodyRoute, validated
from genai_server.http.error_wording import FieldNames
from genai_server.http.json_response import JsonObject, json_response
from genai_server.http.telemetry.request_record import Usage
from genai_server.model_files.pooling_model import Task

MAX_QUESTIONS = 400
MAX_CHOICES = 255
# Choices and levels of all questions together.
MAX_OPTIONS = 8_192
# Maximum number of JSON objects in a list that stands in place of a text.
MAX_OBJECTS = 10_000
# An option as the answer has it in JSON.
Value = str | bool


def compact(data: Any) -> str:
    """Return a value as JSON without spaces, the form in which JSON appears in prompts."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _with_texts(value: Any) -> Any:
    """Return the field `input` of a decision request with its JSON objects converted to text, which the model reads. A
    JSON object is either the whole input or a content part of type `input_json`; everything else is unchanged. Raises
    ValueError for a part of type `input_json` without valid data.
    """
    if isinstance(value, dict):
        return compact(writable(value))
    if not isinstance(value, list):
        return value
    return [
        {**item, "content": [_as_text(part) for part in item["content"]]}
        if isinstance(item, dict) and isinstance(item.get("content"), list)
        else item
        for item in value
    ]


def _as_text(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "input_json":
        return part
    data = part.get("data")
    if isinstance(data, list) and len(data) > MAX_OBJECTS:
        raise ValueError(f"may have at most {MAX_OBJECTS} objects as the data of a part of type input_json")
    if not isinstance(data, dict) and not (isinstance(data, list) and all(isinstance(item, dict) for item in data)):
        raise ValueError("must have an object or a list of objects as the data of each part of type input_json")
    return {"type": "input_text", "text": compact(writable(data))}


class JsonPart(StrictModel):
    """A content part of a question: a JSON object or a list of objects, which the model reads as text."""

    type: Literal["input_json"]
    data: JsonObject | Annotated[list[JsonObject], elements(MAX_OBJECTS)]


Part = Annotated[InputText | InputImage | JsonPart, TaggedUnion("part")]


class QuestionFields(StrictModel):
    """Base class of all types of questions in OpenAI's format: `instructions` is the question as text or content parts,
    and `name` a name that the answer repeats.
    """

    instructions: NonEmptyText | Annotated[list[Part], elements(MAX_PARTS, min_length=1)]
    name: Text | None = None


class PredicateQuestion(QuestionFields):
    """A question in OpenAI's format that is a statement about the input; the answer is the probability that the
    statement is true.
    """

    type: Literal["predicate"]


class Choice(StrictModel):
    """One option of a ChoiceQuestion: a value, which is a text or a boolean, and optionally a description that the
    model reads. The text "true" and the boolean true are different options.
    """

    value: NonEmptyText | bool
    description: Text | None = None


class ChoiceQuestion(QuestionFields):
    """A question in OpenAI's format with several options; the answer has the most likely option and the probabilities
    of all options.
    """

    type: Literal["choice"]
    choices: Annotated[list[Choice], elements(MAX_CHOICES, min_length=2)]


class Level(StrictModel):
    """One level of a ScoreQuestion: a label, and optionally a description that the model reads."""

    label: NonEmptyText
    description: Text | None = None


class ScoreQuestion(QuestionFields):
    """A question in OpenAI's format with several levels, lowest first, such as grades; the answer is the expected level
    and the probabilities of all levels.
    """

    type: Literal["score"]
    levels: Annotated[list[Level], elements(MAX_CHOICES, min_length=2)]


Question = PredicateQuestion | ChoiceQuestion | ScoreQuestion


def options_of(question: Question) -> list[tuple[Value, str | None]]:
    """Return the values of a question's options in order, each with its description, or with None if it has no
    description.
    """
    match question:
        case ChoiceQuestion():
            return [(choice.value, choice.description) for choice in question.choices]
        case ScoreQuestion():
            return [(level.label, level.description) for level in question.levels]
    return [(True, None), (False, None)]


def key(value: Value) -> tuple[bool, Value]:
    """Return a dictionary key for the value of an option. The boolean true and the number 1, which are equal in Python,
    get different keys, as do false and 0.
    """
    return isinstance(value, bool), value


def _with_different_options(question: Question) -> Question:
    keys = [key(value) for value, _ in options_of(question)]
    if len(set(keys)) < len(keys):
        field, member = ("choices", "value") if isinstance(question, ChoiceQuestion) else ("levels", "label")
        number = next(number for number, option_key in enumerate(keys) if option_key in keys[:number])
        rule = f"must differ from the others; given {compact(keys[number][1])} twice"
        raise field_error(f"{field}[{number}].{member}", rule)
    return question


CheckedQuestion = Annotated[Annotated[Question, TaggedUnion("question")], AfterValidator(_with_different_options)]


class DecisionRequest(ResultFields, WithoutEffect):
    """Body of /v1/decisions in OpenAI's format: the input (a text, or messages with images), up to 400 questions about
    it, and how to compute and serve the answers. It may have at most 8192 options in all questions together.
    """

    input: Annotated[Input, BeforeValidator(_with_texts)] = Field(
        description="What the questions are about: a text, or messages, calls and their outputs as in /v1/responses. "
        "Parts of type input_json, and an object in place of all, are read as the text of their JSON."
    )
    questions: Annotated[list[CheckedQuestion], elements(MAX_QUESTIONS, min_length=1)]
    order_invariant: bool | None = Field(
        None, description="Make the answer to a choice independent of the order of its options. Takes twice as long."
    )
    temperature: float | None = Field(
        None,
        gt=0,
        le=100,
        description="Above 1 makes the probabilities of a question's options more alike; 1 by default.",
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables for the chat template.")
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_SALT_LENGTH,
        description="Share cached prefixes only with requests that have the same salt. Use a random secret.",
    )

    @model_validator(mode="after")
    def _has_few_options(self) -> Self:
        num_options = sum(len(options_of(question)) for question in self.questions)
        if num_options > MAX_OPTIONS:
            raise field_error(
                "questions", f"may have at most {MAX_OPTIONS} options, of all questions together; given {num_options}"
            )
        return self


class PredicateAnswer(BaseModel):
    """The answer to a predicate question: the probability that the statement is true. `label_mass` is the probability
    that the model would answer with one of the options at all.
    """

    type: Literal["predicate"]
    name: str | None
    probability: float
    label_mass: float


class ChoiceProbability(BaseModel):
    """The probability of one option in the answer to a choice question."""

    value: Value
    probability: float


class ChoiceAnswer(BaseModel):
    """The answer to a choice question: the most likely option (`choice`), and the probabilities of all options.
    `confidence` is 0 if all options are equally likely and 1 if one is certain. `label_mass` is the probability that
    the model would answer with one of the options at all.
    """

    type: Literal["choice"]
    name: str | None
    choice: Value
    confidence: float
    probabilities: list[ChoiceProbability]
    label_mass: float


class LevelProbability(BaseModel):
    """The probability of one level in the answer to a score question. `value` is the level's number, counted from 0."""

    value: int
    label: str
    probability: float


class ScoreAnswer(BaseModel):
    """The answer to a score question: the expected level as a number, counted from 0 (`score`), and the probabilities
    of all levels. `confidence` is 0 if all levels are equally likely and 1 if one is certain. `label_mass` is the
    probability that the model would answer with one of the levels at all.
    """

    type: Literal["score"]
    name: str | None
    score: float
    confidence: float
    probabilities: list[LevelProbability]
    label_mass: float


class RefusalAnswer(BaseModel):
    """Takes the place of an answer if a question could not be answered; `error` has the code and message of the reason.
    Other questions of the request may have answers.
    """

    type: Literal["refusal"]
    name: str | None
    error: JsonObject


class DecisionResponse(BaseModel):
    """Response of /v1/decisions in OpenAI's format: the answers in the order of the questions, and the token counts."""

    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer | RefusalAnswer]
    usage: JsonObject


# Maximum number of JSON values in a list that stands in place of a text.
_MAX_VALUES = 10_000
_JsonText = NonEmptyText | JsonObject | Annotated[list[Any], elements(_MAX_VALUES)]
# A text, or JSON that is read as text.
DecisionText = Annotated[_JsonText, AfterValidator(writable)]


class SglangQuestion(StrictModel):
    """Base class of all types of questions in SGLang's format: `id` is the key of the answer in the response, and
    `question` the text, or JSON that the model reads as text.
    """

    id: NonEmptyText
    question: DecisionText


class SglangYesNo(SglangQuestion):
    """A yes or no question in SGLang's format. `yes` and `no` are optional descriptions of the two answers."""

    type: Literal["yes_no"]
    yes: DecisionText | None = None
    no: DecisionText | None = None


class SglangOption(StrictModel):
    """One option of a choice in SGLang's format: its name, and optionally a description that the model reads."""

    name: NonEmptyText
    description: DecisionText | None = None


class SglangChoice(SglangQuestion):
    """A question with several options in SGLang's format; the answer has the probability of each option."""

    type: Literal["choice"]
    options: Annotated[list[SglangOption], elements(255, min_length=2)]


class SglangScore(SglangQuestion):
    """A question with several levels, lowest first, in SGLang's format; the answer is the expected level and the
    probability of each level.
    """

    type: Literal["score"]
    levels: Annotated[list[DecisionText], elements(255, min_length=2)]


class SglangDecisionRequest(ResultFields):
    """Body of /v1/decisions in SGLang's format: a text or JSON as the input, images, and questions with different ids.
    The server converts it with `openai_form` and answers it like a request in OpenAI's format.
    """

    input: DecisionText
    questions: Annotated[
        list[Annotated[SglangYesNo | SglangChoice | SglangScore, TaggedUnion("question")]], elements(400, min_length=1)
    ]
    images: Annotated[list[ImageUrl], elements(128)] | None = None
    temperature: float | None = Field(None, gt=0, le=100)
    chat_template_kwargs: dict[str, Any] | None = None
    prompt_format_version: None = Field(None, description="Only null: this server's prompts have words of their own.")
    return_prompt_token_ids: Literal[False] | None = Field(None, description="Only SGLang's default is accepted.")

    @model_validator(mode="after")
    def _differ(self) -> Self:
        ids = [question.id for question in self.questions]
        if len(set(ids)) < len(ids):
            raise field_error("questions", "must have different ids")
        return self

    def openai_form(self, as_text: Any) -> JsonObject:
        """Return this body in OpenAI's format. `as_text` is a function that converts a JSON value to the text that the
        model reads.
        """

        def text(value: Any) -> str:
            return value if isinstance(value, str) else as_text(value)

        questions: list[JsonObject] = []
        for question in self.questions:
            converted: JsonObject = {
                "type": question.type,
                "name": question.id,
                "instructions": text(question.question),
            }
            if isinstance(question, SglangChoice):
                options = [(option.name, option.description) for option in question.options]
                converted["choices"] = [{"value": name, **_about(description, text)} for name, description in options]
            elif isinstance(question, SglangScore):
                converted["levels"] = [{"label": text(level)} for level in question.levels]
            else:
                converted["type"] = "predicate"
                details = {"true": question.yes, "false": question.no}
                lines = [
                    f"\n{name}: {text(description)}" for name, description in details.items() if description is not None
                ]
                converted["instructions"] += "".join(lines)
            questions.append(converted)
        parts: list[JsonObject] = [
            {"type": "input_image", "image_url": image.url, "detail": image.detail} for image in self.images or []
        ]
        content = [*parts, {"type": "input_text", "text": text(self.input)}]
        shared = ("temperature", "chat_template_kwargs", *ResultFields.model_fields)
        fields = {name: getattr(self, name) for name in shared}
        return {"input": [{"role": "user", "content": content}], "questions": questions, **fields}

    def answers(self, answers: Sequence[Mapping[str, Any]]) -> JsonObject:
        """Convert answers from OpenAI's format to SGLang's: return an object that maps the id of each question to its
        answer. The argument `answers` must be in the order of the questions.
        """
        return {
            question.id: _answer(question, answer) for question, answer in zip(self.questions, answers, strict=True)
        }


class SglangDecisionResponse(BaseModel):
    """Response of /v1/decisions in SGLang's format. `answers` has the answer to each question by the question's id."""

    object: str
    model: str
    answers: dict[str, JsonObject]
    usage: JsonObject


def form_of_body(body: Any) -> str:
    """Return the format of a body of /v1/decisions, "sglang" or "openai", which is recognized by the body's first
    question. Pydantic calls it to choose the schema that validates the body.
    """
    questions = body.get("questions") if isinstance(body, dict) else None
    first = questions[0] if isinstance(questions, list) and questions else None
    is_other = "question" in first if isinstance(first, dict) else isinstance(body, SglangDecisionRequest)
    return "sglang" if is_other else "openai"


def _about(description: Any, text: Any) -> JsonObject:
    return {} if description is None else {"description": text(description)}


def _answer(question: SglangQuestion, answer: Mapping[str, Any]) -> JsonObject:
    if answer["type"] == "refusal":
        return {"type": "refusal", "error": answer["error"]}
    if isinstance(question, SglangYesNo):
        shares = {"yes": answer["probability"], "no": 1.0 - answer["probability"]}
        return {"type": "yes_no", "probabilities": shares, "label_mass": answer["label_mass"]}
    shares = {str(entry["value"]): entry["probability"] for entry in answer["probabilities"]}
    result = "choice" if isinstance(question, SglangChoice) else "score"
    return {"type": result, "probabilities": shares, "label_mass": answer["label_mass"], result: answer[result]}


# The client's names of the chat's fields.
_NAMES = FieldNames({"messages": "input"})


@dataclass(frozen=True)
class Reading:
    """A question together with one order of its options, which is the order in which the model reads them. Each reading
    becomes one prompt; `readings` creates them.

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
        """The number of images in the question itself, not counting those of the request's input."""
        instructions = self.question.instructions
        return 0 if isinstance(instructions, str) else sum(isinstance(part, InputImage) for part in instructions)

    @property
    def parts(self) -> list[JsonObject]:
        """The question and its options as content parts of a chat message. The first and the last part are texts; they
        may be the same part.
        """
        question, instructions = self.question, self.question.instructions
        text = "Is the following true? " if isinstance(question, PredicateQuestion) else "Question: "
        content: list[JsonObject] = []
        for part in [instructions] if isinstance(instructions, str) else instructions:
            if isinstance(part, InputImage):
                image = {"url": part.image_url, "detail": part.detail}
                content += [_text_part(text), {"type": "image_url", "image_url": image}]
                text = ""
            elif isinstance(part, JsonPart):
                text += compact(part.data)
            else:
                text += part if isinstance(part, str) else part.text
        return [*content, _text_part(text + self._choices)]

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
    """Return the readings of all questions of a request, that is, each question with an order in which the model reads
    its options. There is one reading for each question, or two, in opposite orders, for a choice if the request asks
    for answers that do not depend on the order (`order_invariant`).
    """
    result = []
    for number, question in enumerate(body.questions):
        orders = [[value for value, _ in options_of(question)]]
        if body.order_invariant and isinstance(question, ChoiceQuestion):
            orders = [ascending := sorted(orders[0], key=compact), ascending[::-1]]
        result += [Reading(number, question, values) for values in orders]
    return result


def _answer_text(value: Value) -> str:
    """Return the text that the model would write to choose the option `value`: a JSON object with
    the member `answer`.
    """
    return json.dumps({"answer": value}, ensure_ascii=False)


def question_chats(body: DecisionRequest, readings: Sequence[Reading]) -> list[ChatWithOptions]:
    """Return a chat request for each of `readings`, that is, each question with one order of its options. Reasoning is
    switched off where the model allows it.

    Raises InvalidField if the request's input has nothing that the model can read.
    """
    conversation = to_messages(to_response_items(body.input, {}))
    if not conversation:
        raise InvalidField("input", "must have an item that the model can read")
    *before, last = conversation if conversation[-1].role == "user" else [*conversation, None]
    fields = {"chat_template_kwargs": body.chat_template_kwargs, "cache_salt": body.cache_salt}
    chats = []
    for reading in readings:
        messages = [*before, {"role": "user", "content": _continued(last, reading.parts)}]
        chat = ChatParameters.model_validate({"messages": messages, "reasoning_effort": "none", **fields})
        answers = [_answer_text(value) for value in reading.values]
        chats.append(ChatWithOptions(chat, answers, f"questions[{reading.number}]", reading.num_images))
    return chats


def _continued(last: ChatMessage | None, question: Sequence[JsonObject]) -> str | list[JsonObject]:
    """Return the content of the user's message that ends with the question: the content of `last`, the user's last
    message in the input, followed by the content parts `question`. `last` is None if the input does not end with a
    message of the user.
    """
    first, *remaining = question
    content = (None if last is None else last.content) or []
    last_parts = (
        [_text_part(content)] if isinstance(content, str) else [part.model_dump(exclude_none=True) for part in content]
    )
    if last_parts and last_parts[-1]["type"] == "text":
        first = _text_part(f"{last_parts.pop()['text']}\n\n{first['text']}")
    parts = [*last_parts, first, *remaining]
    return parts[0]["text"] if len(parts) == 1 else parts


def _text_part(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def answer(question: Question, scored: Sequence[tuple[Reading, OptionScores]]) -> JsonObject:
    """Return the answer to a question in OpenAI's format, from the scores of its options.

    `scored` has the scores for each order in which the model has read the options; the probabilities of all orders are
    averaged.
    """
    shares = [
        {key(value): share for value, share in zip(reading.values, scores.probabilities, strict=True)}
        for reading, scores in scored
    ]
    values = [value for value, _ in options_of(question)]
    probabilities = [fmean(reading_shares[key(value)] for reading_shares in shares) for value in values]
    label_mass = fmean(scores.mass for _, scores in scored)
    result: JsonObject = {"type": question.type, "name": question.name, "label_mass": label_mass}
    if isinstance(question, PredicateQuestion):
        return result | {"probability": probabilities[0]}
    count, highest = len(probabilities), max(probabilities)
    result["confidence"] = max(0.0, (count * highest - 1) / (count - 1))
    if isinstance(question, ChoiceQuestion):
        result["choice"] = values[probabilities.index(highest)]
        result["probabilities"] = [
            {"value": value, "probability": share} for value, share in zip(values, probabilities, strict=True)
        ]
        return result
    result["score"] = sum(number * share for number, share in enumerate(probabilities))
    result["probabilities"] = [
        {"value": number, "label": level.label, "probability": share}
        for number, (level, share) in enumerate(zip(question.levels, probabilities, strict=True))
    ]
    return result


@dataclass(frozen=True)
class Decided:
    """The result of `decide`: the answers to all questions of a request in OpenAI's format, with the model's name and
    the token counts.
    """

    # The model's name in responses.
    model: str
    answers: list[JsonObject]
    usage: Usage


async def decide(services: Services, body: DecisionRequest, context: RequestContext) -> Decided:
    """Answer all questions of a request to /v1/decisions, and return the answers. A question that fails gets a refusal
    as its answer, unless all questions fail.

    Raises RequestError if the request is invalid, Unavailable if no engine can take it, GenerationFailed if no question
    can be answered, and ClientLeft when the client disconnects, after which nothing is left running.
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
            chats = await context.in_turn(partial(question_chats, body, asked), is_long=True)
            prompts = await encode_chats_with_options(services, chats, codec, context)
    choice = choose_by_prompt(context, choice, prompts[0].head.text, device=body.device, cache_salt=body.cache_salt)
    scorer = NextTokenScorer(services, context, choice, body, param="questions")
    with closing(scorer):
        scores = await score_options(scorer, prompts, choice.model, temperature=body.temperature or 1.0)
    answers: list[JsonObject] = []
    errors: list[GenerationFailed] = []
    for number, question in enumerate(body.questions):
        results = [(reading, each) for reading, each in zip(asked, scores, strict=True) if reading.number == number]
        scored = [(reading, each) for reading, each in results if isinstance(each, OptionScores)]
        if len(scored) == len(results):
            answers.append(answer(question, scored))
        else:
            errors += [each for _, each in results if isinstance(each, GenerationFailed)][:1]
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
    """Answer questions about an input, such as a text, by the probabilities of each question's options, without
    generating text. Returns the answers in OpenAI's or SGLang's format, depending on the format of the body.
    """
    if isinstance(body, SglangDecisionRequest):
        request = validated(_OPENAI_FORM, body.openai_form(compact))
        decided = await decide(services, request, context)
        response = {"object": "decisions", "model": decided.model, "answers": body.answers(decided.answers)}
        return json_response(response | {"usage": decided.usage.to_json()})
    decided = await decide(services, body, context)
    return json_response(
        {"model": decided.model, "answers": decided.answers, "usage": decided.usage.to_response_json()}
    )
