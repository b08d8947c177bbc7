"""Ollama's Python client."""

import json
from typing import Any

import ollama

from _clients.programs import checks
from _clients.programs.checks import URL, City, equal, get_weather, recipe, run

client = ollama.Client(host=URL)


def _ask(content: str) -> dict[str, Any]:
    return {"model": checks.MODEL, "messages": [{"role": "user", "content": content}]}


def check_recipe() -> None:
    equal(recipe()["answer"].message.content, "hello")


def check_chat() -> None:
    answer = client.chat(**_ask("say hello"), options=ollama.Options(temperature=0, num_ctx=4096), keep_alive="10m")
    equal(answer.message.content, "hello")
    equal((answer.done, answer.done_reason, answer.eval_count), (True, "stop", 5))


def check_stream() -> None:
    chunks = list(client.chat(**_ask("count 5"), stream=True))
    equal("".join(chunk.message.content for chunk in chunks), "1, 2, 3, 4, 5")
    equal([chunk.done for chunk in chunks if chunk.done], [True])


def check_generate() -> None:
    equal(client.generate(checks.MODEL, "say hello", system="Be brief.").response, "hello")
    equal(client.generate(checks.MODEL, "say hello\x04", raw=True).response, "hello")
    equal(client.generate(checks.MODEL, "").done_reason, "load")


def check_format() -> None:
    answer = client.chat(**_ask(checks.ANSWER), format=City.model_json_schema())
    equal(City.model_validate_json(answer.message.content), checks.PARIS)
    equal(json.loads(client.chat(**_ask(checks.ANSWER), format="json").message.content), checks.PARIS.model_dump())


def check_think() -> None:
    answer = client.chat(**_ask("say <think>so</think>yes"), think=True)
    equal((answer.message.thinking, answer.message.content), ("so", "yes"))


def check_tool_loop() -> None:
    asked = _ask(checks.ASK_FOR_WEATHER)
    message = client.chat(**asked, tools=[get_weather]).message
    (call,) = message.tool_calls
    result = get_weather(**call.function.arguments)
    asked["messages"] += [message, {"role": "tool", "tool_name": call.function.name, "content": result}]
    equal(checks.WEATHER in client.chat(**asked, tools=[get_weather]).message.content, True)


def check_list_show_and_ps() -> None:
    equal([model.model for model in client.list().models], [f"{checks.MODEL}:latest"])
    equal("completion" in client.show(checks.MODEL).capabilities, True)
    equal([model.name for model in client.ps().models], [f"{checks.MODEL}:latest"])


def check_an_image() -> None:
    pictured = ollama.Client(host=checks.MODELS_URL)
    few = ollama.Options(num_predict=4)

    def tokens(*images: str) -> int:
        messages = [{"role": "user", "content": checks.WHAT, **({"images": images} if images else {})}]
        return int(pictured.chat(checks.IMAGES_MODEL, messages, options=few).prompt_eval_count)

    equal(tokens(checks.PICTURE) - tokens(), checks.PICTURE_TOKENS)
    equal("vision" in pictured.show(checks.IMAGES_MODEL).capabilities, True)


def check_errors() -> None:
    try:
        client.chat("gpt-9")
    except ollama.ResponseError as error:
        equal((error.status_code, bool(error.error)), (404, True))
    else:
        raise AssertionError("it was not refused")


run(globals())
