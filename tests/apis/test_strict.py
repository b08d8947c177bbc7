"""Arguments of `strict` functions fit their schema, also where the model may answer with text."""

import json
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI
from openai.types.chat import ChatCompletionFunctionToolParam
from openai.types.shared_params import FunctionDefinition

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


def _tool(strict: bool | None = True, parameters: dict[str, Any] = CITY) -> ChatCompletionFunctionToolParam:
    function: FunctionDefinition = {"name": "get_weather", "description": "Get the weather of a city."}
    return {"type": "function", "function": {**function, "parameters": parameters, "strict": strict}}


def _asked(server: RunningServer, content: str, **fields: Any) -> dict[str, Any]:
    response = server.client.post(
        "/v1/chat/completions", json=body(content, **{"max_tokens": 100, "temperature": 0, **fields})
    )
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


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
    with OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        response = client.responses.create(
            model="demo",
            input=QUESTION,
            temperature=0,
            tools=[{"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}],
        )
    (item,) = response.output
    assert item.type == "function_call"
    assert _city(item.arguments) in ("London", "Rome")
    with Anthropic(base_url=demo.url, api_key="none", max_retries=0) as anthropic:
        message = anthropic.messages.create(
            model="demo",
            max_tokens=100,
            messages=[{"role": "user", "content": QUESTION}],
            tools=[{"name": "get_weather", "input_schema": CITY, "strict": True}],
            extra_body={"temperature": 0},
        )
    (block,) = message.content
    assert block.type == "tool_use"
    assert _city(json.dumps(block.input)) in ("London", "Rome")
    plain = demo.client.post("/v1/chat", json=body(QUESTION, tools=[_tool()], temperature=0, max_tokens=100)).json()
    (call,) = plain["tool_calls"]
    assert _city(call["function"]["arguments"]) in ("London", "Rome")


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
