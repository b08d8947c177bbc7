"""SGLang's form of decisions: the same answers as in OpenAI's, and what is refused."""

from typing import Any

import pytest

from tests.running_server import RunningServer, refusal

INPUT = "It will rain all afternoon."
YES_NO = {"id": "rain", "type": "yes_no", "question": "It rains."}
OPTIONS = [{"name": "sun"}, {"name": "rain", "description": "or snow"}]
CHOICE = {"id": "weather", "type": "choice", "question": "How is it?", "options": OPTIONS}
SCORE = {"id": "wet", "type": "score", "question": "How wet?", "levels": ["dry", {"very": "wet"}]}
BODY = {"input": INPUT, "questions": [YES_NO, CHOICE, SCORE]}


def post(server: RunningServer, body: Any) -> Any:
    response = server.client.post("/v1/decisions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_answers_are_those_of_openais_form(demo: RunningServer) -> None:
    found = post(demo, {**BODY, "temperature": 2.0})
    choices = [{"value": "sun"}, {"value": "rain", "description": "or snow"}]
    questions = [
        {"type": "predicate", "instructions": "It rains."},
        {"type": "choice", "instructions": "How is it?", "choices": choices},
        {"type": "score", "instructions": "How wet?", "levels": [{"label": "dry"}, {"label": '{"very":"wet"}'}]},
    ]
    answers = post(demo, {"input": INPUT, "questions": questions, "temperature": 2.0})["answers"]
    rain, weather, wet = answers
    assert (found["object"], found["model"], list(found["answers"])) == (
        "decisions",
        "demo",
        ["rain", "weather", "wet"],
    )
    assert [one["label_mass"] for one in found["answers"].values()] == [one["label_mass"] for one in answers]
    yes = rain["probability"]
    shares = [{str(one["value"]): one["probability"] for one in each["probabilities"]} for each in (weather, wet)]
    probabilities = [one["probabilities"] for one in found["answers"].values()]
    assert probabilities == [{"yes": yes, "no": 1 - yes}, *shares]
    assert found["answers"]["weather"]["choice"] == weather["choice"]
    assert found["answers"]["wet"]["score"] == wet["score"]
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0


def test_descriptions_and_json_are_read(demo: RunningServer) -> None:
    described = {**YES_NO, "question": {"does": "it rain?"}, "yes": "wet", "no": ["dry"]}
    found = post(demo, {"input": {"weather": "rain"}, "questions": [described]})["answers"]["rain"]
    instructions = '{"does":"it rain?"}\ntrue: wet\nfalse: ["dry"]'
    question = {"type": "predicate", "instructions": instructions}
    (same,) = post(demo, {"input": '{"weather":"rain"}', "questions": [question]})["answers"]
    assert found["probabilities"]["yes"] == same["probability"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"questions": [YES_NO, YES_NO]}, "invalid_value", "questions"),
        ({"questions": [{**CHOICE, "options": OPTIONS[:1]}]}, "invalid_value", "questions[0].options"),
        ({"questions": [{**CHOICE, "options": OPTIONS * 2}]}, "invalid_value", "questions[0].choices[2].value"),
        ({"questions": [{**SCORE, "type": "guess"}]}, "invalid_value", "questions[0]"),
        ({"prompt_format_version": 1}, "unsupported_parameter", "prompt_format_version"),
        ({"return_prompt_token_ids": True}, "invalid_value", "return_prompt_token_ids"),
        ({"input": ""}, "invalid_value", "input"),
    ],
)
def test_invalid_field_is_named(demo: RunningServer, fields: Any, code: str, param: str) -> None:
    assert refusal(demo.client.post("/v1/decisions", json={**BODY, **fields})) == (400, code, param)
