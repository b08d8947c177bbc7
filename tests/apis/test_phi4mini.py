"""Phi-4-mini's chat template in a server; it looks for tools in the system message and does not support calls.

The model is the demo's, which was not trained on that template; its grammar forces the calls.
"""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.running_server import DEMO, RunningServer
from tests.server_here import run_here

# Equivalent to that of Phi-4-mini-instruct.
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' and 'tools' in m and m['tools'] is not none %}"
    "{{ '<|' + m['role'] + '|>' + m['content'] + '<|tool|>' + m['tools'] + '<|/tool|>' + '<|end|>' }}"
    "{% else %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"
)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
QUESTION = {"role": "user", "content": "What is the weather in Oslo?"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("phi4mini")
    model = shutil.copytree(DEMO, folder / "model")
    (model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    with run_here(folder, "--model-dir", str(model)) as server:
        yield server


def _posted(server: RunningServer, path: str, *messages: dict[str, Any], **fields: Any) -> Any:
    response = server.client.post(path, json={"messages": messages, "tools": [TOOL], **fields})
    assert response.status_code == 200, response.text
    return response.json()


def _prompt(server: RunningServer, *messages: dict[str, Any]) -> str:
    return str(_posted(server, "/apply-template", *messages)["prompt"])


def test_a_call_and_its_result_go_through_the_template_and_back(server: RunningServer) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 100}
    (choice,) = _posted(server, "/v1/chat/completions", QUESTION, **fields)["choices"]
    (call,) = choice["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert (choice["finish_reason"], call["function"]["name"]) == ("tool_calls", "get_weather")
    assert set(arguments) == {"city"}

    result = {"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"}
    turns = [QUESTION, choice["message"], result]
    assert _posted(server, "/v1/chat/completions", *turns, max_tokens=100)
    functions = json.dumps([TOOL["function"]])
    written = json.dumps([{"name": "get_weather", "arguments": arguments}])
    assert _prompt(server, *turns) == (
        f"<|system|><|tool|>{functions}<|/tool|><|end|><|user|>{QUESTION['content']}<|end|>"
        f"<|assistant|><|tool_call|>{written}<|/tool_call|><|end|><|tool_response|>21 degrees<|end|><|assistant|>"
    )


def test_a_call_is_streamed(server: RunningServer) -> None:
    asked = {"messages": [QUESTION], "tools": [TOOL], "tool_choice": "required", "stream": True, "max_tokens": 100}
    lines = server.client.post("/v1/chat/completions", json=asked).text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    deltas = [delta for chunk in chunks for delta in chunk["choices"][0]["delta"].get("tool_calls", [])]
    first = [delta["function"].get("arguments", "") for delta in deltas if delta["index"] == 0]
    assert deltas[0]["function"]["name"] == "get_weather"
    assert json.loads("".join(first))["city"] in ("Oslo", "Rome")


def test_the_callers_own_system_message_has_the_tools(server: RunningServer) -> None:
    prompt = _prompt(server, {"role": "system", "content": "Be brief."}, QUESTION)
    assert prompt.startswith('<|system|>Be brief.<|tool|>[{"name": "get_weather", ')
    assert prompt.count("<|system|>") == 1
