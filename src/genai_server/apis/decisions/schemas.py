"""Bodies of OpenAI's /v1/decisions (openai-python 3.57: `types/decision_create_params.py`, `types/decision.py`)."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from genai_server.apis.responses.item_schemas import Input, InputImage, InputText
from genai_server.generation.parameters.base import (
    ByType,
    NonEmptyText,
    ResultFields,
    Text,
    Wire,
    WithoutEffect,
    elements,
    field_error,
    writable,
)
from genai_server.generation.parameters.chat_messages import MAX_PARTS
from genai_server.generation.parameters.sampling_parameters import MAX_SALT_LENGTH
from genai_server.http.json_response import JsonObject

MAX_QUESTIONS = 400
MAX_CHOICES = 255
# Choices and levels of all questions together.
MAX_OPTIONS = 8_192
# Maximum number of JSON objects in a list that stands in place of a text.
MAX_OBJECTS = 10_000
# An option as the answer has it in JSON.
Value = str | bool


def compact(data: Any) -> str:
    """The value as compact JSON, which is how it appears in prompts."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _with_texts(given: Any) -> Any:
    """The field `input` of a body with its JSON objects converted to text. A JSON object is either the whole input or a
    content part of type `input_json`; everything else is unchanged.
    """
    if isinstance(given, dict):
        return compact(writable(given))
    if not isinstance(given, list):
        return given
    return [
        {**item, "content": [_as_text(part) for part in item["content"]]}
        if isinstance(item, dict) and isinstance(item.get("content"), list)
        else item
        for item in given
    ]


def _as_text(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "input_json":
        return part
    data = part.get("data")
    if isinstance(data, list) and len(data) > MAX_OBJECTS:
        raise ValueError(f"may have at most {MAX_OBJECTS} objects as the data of a part of type input_json")
    if not isinstance(data, dict) and not (isinstance(data, list) and all(isinstance(one, dict) for one in data)):
        raise ValueError("must have an object or a list of objects as the data of each part of type input_json")
    return {"type": "input_text", "text": compact(writable(data))}


class JsonPart(Wire):
    """A JSON object or a list of objects, which the model reads as text."""

    type: Literal["input_json"]
    data: JsonObject | Annotated[list[JsonObject], elements(MAX_OBJECTS)]


Part = Annotated[InputText | InputImage | JsonPart, ByType("part")]


class QuestionFields(Wire):
    """Fields that all types of questions have."""

    instructions: NonEmptyText | Annotated[list[Part], elements(MAX_PARTS, min_length=1)]
    name: Text | None = None


class PredicateQuestion(QuestionFields):
    """A statement about the input; the answer is the probability that it is true."""

    type: Literal["predicate"]


class Choice(Wire):
    """One option of a choice. The text "true" and the boolean true are different options."""

    value: NonEmptyText | bool
    description: Text | None = None


class ChoiceQuestion(QuestionFields):
    """A question with several options; the answer has the most likely option and all probabilities."""

    type: Literal["choice"]
    choices: Annotated[list[Choice], elements(MAX_CHOICES, min_length=2)]


class Level(Wire):
    """One level of a score."""

    label: NonEmptyText
    description: Text | None = None


class ScoreQuestion(QuestionFields):
    """A question with several levels, lowest first; the answer is the expected level and all probabilities."""

    type: Literal["score"]
    levels: Annotated[list[Level], elements(MAX_CHOICES, min_length=2)]


Question = PredicateQuestion | ChoiceQuestion | ScoreQuestion


def options_of(question: Question) -> list[tuple[Value, str | None]]:
    """The options of a question in order, each with its description, or with None if it has no description."""
    match question:
        case ChoiceQuestion():
            return [(choice.value, choice.description) for choice in question.choices]
        case ScoreQuestion():
            return [(level.label, level.description) for level in question.levels]
    return [(True, None), (False, None)]


def key(value: Value) -> tuple[bool, Value]:
    """A dictionary key for the value of an option. Unlike the value itself, it distinguishes true from 1 and false from
    0.
    """
    return isinstance(value, bool), value


def _with_different_options(question: Question) -> Question:
    keys = [key(value) for value, _ in options_of(question)]
    if len(set(keys)) < len(keys):
        field, member = ("choices", "value") if isinstance(question, ChoiceQuestion) else ("levels", "label")
        number = next(number for number, one in enumerate(keys) if one in keys[:number])
        rule = f"must differ from the others; given {compact(keys[number][1])} twice"
        raise field_error(f"{field}[{number}].{member}", rule)
    return question


CheckedQuestion = Annotated[Annotated[Question, ByType("question")], AfterValidator(_with_different_options)]


class DecisionRequest(ResultFields, WithoutEffect):
    """Body of /v1/decisions."""

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
    """The probability that the statement is true. In all answers, `label_mass` is the probability that the model would
    answer with one of the options at all.
    """

    type: Literal["predicate"]
    name: str | None
    probability: float
    label_mass: float


class ChoiceProbability(BaseModel):
    """The probability of one option of a choice."""

    value: Value
    probability: float


class ChoiceAnswer(BaseModel):
    """The most likely option, and the probabilities of all options."""

    type: Literal["choice"]
    name: str | None
    choice: Value
    confidence: float
    probabilities: list[ChoiceProbability]
    label_mass: float


class LevelProbability(BaseModel):
    """The probability of one level. `value` is the level's number, counted from 0."""

    value: int
    label: str
    probability: float


class ScoreAnswer(BaseModel):
    """The expected level as a number, counted from 0, and the probabilities of all levels."""

    type: Literal["score"]
    name: str | None
    score: float
    confidence: float
    probabilities: list[LevelProbability]
    label_mass: float


class RefusalAnswer(BaseModel):
    """The reason why a question could not be answered. Other questions of the request may have answers."""

    type: Literal["refusal"]
    name: str | None
    error: JsonObject


class DecisionResponse(BaseModel):
    """Response of /v1/decisions. The answers are in the order of the questions."""

    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer | RefusalAnswer]
    usage: JsonObject
