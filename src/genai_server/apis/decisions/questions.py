"""Writes the prompts and options of the questions of /v1/decisions, and turns the options' probabilities into answers.

A question is put at the end of the user's last message, so that the prompts for all questions begin alike. The model
would answer with a JSON object with one member, such as `{"answer": true}`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from genai_server.apis.decisions.schemas import (
    ChoiceQuestion,
    DecisionRequest,
    JsonPart,
    PredicateQuestion,
    Question,
    Value,
    compact,
    key,
    options_of,
)
from genai_server.apis.responses.item_schemas import InputImage
from genai_server.apis.responses.items import given_items, to_messages
from genai_server.errors import InvalidField
from genai_server.generation.option_scores import AskedChat, OptionScores
from genai_server.generation.parameters.chat_messages import ChatMessage, ChatParameters
from genai_server.http.json_response import JsonObject


@dataclass(frozen=True)
class Reading:
    """A question with its options in one order. A choice whose order must not matter is asked in two orders, whose mean
    is the answer.
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
    """All questions of a request, each with every order of options in which it is asked."""
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
    """The chat request for each reading of a question, with reasoning switched off where the model allows it.

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
    """The content of the user's last message followed by the question. `last` is None if the input does not end with a
    user's message.
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
    """The answer to a question in OpenAI's format, made from the mean probabilities over all orders of the options."""
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
