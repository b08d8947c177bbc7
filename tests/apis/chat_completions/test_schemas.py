"""`functions` of chat completions, as clients older than `tools` use them, and what is left out of bodies."""

import json
from typing import Any

from openai import OpenAI

from tests.running_server import RunningServer, body

FUNCTIONS: Any = [{"name": "add", "parameters": {"type": "object"}}, {"name": "now"}]
ADD = '<tool_call> {"name": "add", "arguments": {"a": 1}} </tool_call>'
PATH = "/v1/chat/completions"


def _choice(server: RunningServer, content: str, **fields: Any) -> dict[str, Any]:
    response = server.client.post(PATH, json=body(content, **{"functions": FUNCTIONS, **fields}))
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def test_a_call_is_one_function_call_without_an_id(scripted: RunningServer) -> None:
    choice = _choice(scripted, f"say {ADD} {ADD}")
    called = {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 1}'}}
    assert (choice["finish_reason"], choice["message"]) == ("function_call", called | {"refusal": None})


def test_an_answer_without_a_call_has_none(scripted: RunningServer) -> None:
    for fields, content in (({}, "say hi"), ({"function_call": "none"}, f"say {ADD}")):
        choice = _choice(scripted, content, **fields)
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", content.removeprefix("say "))


def test_named_function_is_called_and_its_result_sent_back(demo: RunningServer) -> None:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    functions = [{"name": "get_weather", "description": "Get the weather of a city", "parameters": city}]
    asked: Any = {"model": "demo", "functions": functions, "temperature": 0, "max_tokens": 100}
    question = {"role": "user", "content": "What is the weather in Paris?"}
    with OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:

        def choice(*messages: Any, **fields: Any) -> Any:
            return client.chat.completions.create(messages=list(messages), **asked, **fields).choices[0]

        forced = choice(question, function_call={"name": "get_weather"})
        assert forced.finish_reason == "function_call"
        assert "city" in json.loads(forced.message.function_call.arguments)
        called = choice(question).message
        assert called.function_call is not None
        result = {"role": "function", "name": "get_weather", "content": '{"temperature": 21}'}
        answer = choice(question, called.model_dump(exclude_none=True), result)
    assert (answer.finish_reason, "21" in (answer.message.content or "")) == ("stop", True)


def test_function_messages_are_written_like_tool_messages(demo: RunningServer) -> None:
    def prompt(called: dict[str, Any], result: dict[str, Any]) -> str:
        turns = [{"role": "assistant", "content": None, **called}, {"name": "add", "content": "2", **result}]
        asked = {"messages": [{"role": "user", "content": "x"}, *turns]}
        response = demo.client.post("/apply-template", json=asked)
        assert response.status_code == 200, response.text
        return str(response.json()["prompt"])

    call, id = {"name": "add", "arguments": "{}"}, "call00001"
    older = prompt({"function_call": call}, {"role": "function"})
    assert older == prompt({"tool_calls": [{"id": id, "function": call}]}, {"role": "tool", "tool_call_id": id})
