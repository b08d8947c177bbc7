"""Arguments of `strict` functions fit their schema, also where the model may answer with text."""

import json
from typing import Any

import pytest

from tests.running_server import RunningServer, body

QUESTION = "What is the weather in Paris?"
# Unconstrained, the model writes the city of the question.
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["London", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
CANNOT = {"type": "object", "properties": {"city": {"type": "text"}}}


def _tool(strict: bool | None = True, parameters: dict[str, Any] = CITY) -> dict[str, Any]:
    function = {"name": "get_weather", "description": "Get the weather of a city."}
    return {"type": "function", "function": {**function, "parameters": parameters, "strict": strict}}


def _asked(server: RunningServer, content: str, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    asked = {"max_tokens": 100, "temperature": 0, **fields}
    response = server.client.post(path, json=body(content, **asked))
    assert response.status_code == 200, response.text
    found = response.json()
    return found["choices"][0] if "choices" in found else found


def _city(arguments: str) -> str:
    (city,) = json.loads(arguments).values()
    assert isinstance(city, str)
    return city


@pytest.mark.parametrize("choice", [None, "auto"])
def test_unforced_call_follows_its_schema_unless_not_strict(demo: RunningServer, choice: str | None) -> None:
    for strict, cities in ((True, ("London", "Rome")), (None, ("London", "Rome")), (False, ("Paris",))):
        answer = _asked(demo, QUESTION, tools=[_tool(strict)], tool_choice=choice)
        assert answer["finish_reason"] == "tool_calls"
        (call,) = answer["message"]["tool_calls"]
        assert _city(call["function"]["arguments"]) in cities


@pytest.mark.parametrize("content", ["Hello!", "What is the capital of France?"])
def test_an_answer_in_words_is_what_it_is_without_strict(demo: RunningServer, content: str) -> None:
    free, strict = (_asked(demo, content, tools=[_tool(strict)]) for strict in (None, True))
    assert strict == free
    assert strict["message"]["content"]
    assert strict["finish_reason"] == "stop"


def test_strict_binds_on_every_endpoint_with_tools(demo: RunningServer) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
    asked = {"input": QUESTION, "temperature": 0, "tools": [tool]}
    (item,) = demo.client.post("/v1/responses", json=asked).json()["output"]
    tools = [{"name": "get_weather", "input_schema": CITY, "strict": True}]
    (block,) = _asked(demo, QUESTION, "/v1/messages", tools=tools)["content"]
    (call,) = _asked(demo, QUESTION, "/v1/chat", tools=[_tool()])["tool_calls"]
    assert (item["type"], block["type"]) == ("function_call", "tool_use")
    for arguments in (item["arguments"], json.dumps(block["input"]), call["function"]["arguments"]):
        assert _city(arguments) in ("London", "Rome")


def test_lax_function_next_to_a_strict_one_is_unconstrained(demo: RunningServer) -> None:
    other = {"type": "function", "function": {"name": "get_time", "parameters": CITY, "strict": True}}
    # A schema that cannot be followed does not constrain an answer here.
    for parameters in (CITY, CANNOT):
        answer = _asked(demo, QUESTION, tools=[other, _tool(False, parameters)])
        (call,) = answer["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert _city(call["function"]["arguments"]) == "Paris"


def test_a_call_that_is_cut_is_the_beginning_of_one_that_fits(demo: RunningServer) -> None:
    answer = _asked(demo, QUESTION, tools=[_tool()], max_tokens=22)
    assert answer["finish_reason"] == "length"
    (call,) = answer["message"]["tool_calls"]
    assert any(json.dumps({"city": city}).startswith(call["function"]["arguments"]) for city in ("London", "Rome"))
