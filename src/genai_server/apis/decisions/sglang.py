"""SGLang's format of /v1/decisions, in which questions have ids and the answers are members of an object (sglang
0.5.23: `srt/entrypoints/openai/protocol.py`, `serving_decisions.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from genai_server.generation.parameters.base import (
    ByType,
    NonEmptyText,
    ResultFields,
    Wire,
    elements,
    field_error,
    writable,
)
from genai_server.generation.parameters.chat_messages import ImageUrl
from genai_server.http.json_response import JsonObject

# Maximum number of JSON values in a list that stands in place of a text.
_MAX_VALUES = 10_000
_JsonText = NonEmptyText | JsonObject | Annotated[list[Any], elements(_MAX_VALUES)]
# A text, or JSON that is read as text.
DecisionText = Annotated[_JsonText, AfterValidator(writable)]


class SglangQuestion(Wire):
    """Fields that all types of questions have."""

    id: NonEmptyText
    question: DecisionText


class SglangYesNo(SglangQuestion):
    """A yes or no question. Both answers may have a description."""

    type: Literal["yes_no"]
    yes: DecisionText | None = None
    no: DecisionText | None = None


class SglangOption(Wire):
    """One option of a choice."""

    name: NonEmptyText
    description: DecisionText | None = None


class SglangChoice(SglangQuestion):
    """A question with several options."""

    type: Literal["choice"]
    options: Annotated[list[SglangOption], elements(255, min_length=2)]


class SglangScore(SglangQuestion):
    """A question with several levels, lowest first."""

    type: Literal["score"]
    levels: Annotated[list[DecisionText], elements(255, min_length=2)]


class SglangDecisionRequest(ResultFields):
    """Body of /v1/decisions in SGLang's format."""

    input: DecisionText
    questions: Annotated[
        list[Annotated[SglangYesNo | SglangChoice | SglangScore, ByType("question")]], elements(400, min_length=1)
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
        """The body converted to OpenAI's format. `as_text` converts a JSON value to the text that the model reads."""

        def text(value: Any) -> str:
            return value if isinstance(value, str) else as_text(value)

        questions: list[JsonObject] = []
        for one in self.questions:
            asked: JsonObject = {"type": one.type, "name": one.id, "instructions": text(one.question)}
            if isinstance(one, SglangChoice):
                options = [(option.name, option.description) for option in one.options]
                asked["choices"] = [{"value": name, **_about(given, text)} for name, given in options]
            elif isinstance(one, SglangScore):
                asked["levels"] = [{"label": text(level)} for level in one.levels]
            else:
                asked["type"] = "predicate"
                details = {"true": one.yes, "false": one.no}
                lines = [f"\n{name}: {text(given)}" for name, given in details.items() if given is not None]
                asked["instructions"] += "".join(lines)
            questions.append(asked)
        parts: list[JsonObject] = [
            {"type": "input_image", "image_url": image.url, "detail": image.detail} for image in self.images or []
        ]
        content = [*parts, {"type": "input_text", "text": text(self.input)}]
        same = ("temperature", "chat_template_kwargs", *ResultFields.model_fields)
        fields = {name: getattr(self, name) for name in same}
        return {"input": [{"role": "user", "content": content}], "questions": questions, **fields}

    def answers(self, answers: Sequence[Mapping[str, Any]]) -> JsonObject:
        """Convert answers from OpenAI's format, in the order of the questions, to SGLang's: an object with the answers
        by the ids of the questions.
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


def form_of_body(given: Any) -> str:
    """ "sglang" or "openai": the format of a body, which its first question shows."""
    questions = given.get("questions") if isinstance(given, dict) else None
    first = questions[0] if isinstance(questions, list) and questions else None
    is_other = "question" in first if isinstance(first, dict) else isinstance(given, SglangDecisionRequest)
    return "sglang" if is_other else "openai"


def _about(given: Any, text: Any) -> JsonObject:
    return {} if given is None else {"description": text(given)}


def _answer(question: SglangQuestion, answer: Mapping[str, Any]) -> JsonObject:
    if answer["type"] == "refusal":
        return {"type": "refusal", "error": answer["error"]}
    if isinstance(question, SglangYesNo):
        shares = {"yes": answer["probability"], "no": 1.0 - answer["probability"]}
        return {"type": "yes_no", "probabilities": shares, "label_mass": answer["label_mass"]}
    shares = {str(one["value"]): one["probability"] for one in answer["probabilities"]}
    result = "choice" if isinstance(question, SglangChoice) else "score"
    return {"type": result, "probabilities": shares, "label_mass": answer["label_mass"], result: answer[result]}
