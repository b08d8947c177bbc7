"""Ollama's Python client."""

import asyncio
import json
from typing import Any

import ollama

from _clients.programs.checks import (
    ANSWER,
    ASK_FOR_WEATHER,
    IMAGES_MODEL,
    IMAGES_URL,
    MODEL,
    PARIS,
    PICTURE,
    PICTURE_TOKENS,
    URL,
    WEATHER,
    WHAT,
    City,
    check,
    equal,
    get_weather,
    recipe,
    run,
)

client = ollama.Client(host=URL)


def _ask(content: str) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}]}


@check("recipe")
def _recipe() -> None:
    equal(recipe()["answer"].message.content, "hello")


@check("chat")
def _chat() -> None:
    answer = client.chat(**_ask("say hello"), options=ollama.Options(temperature=0, num_ctx=4096), keep_alive="10m")
    equal(answer.message.content, "hello")
    equal((answer.done, answer.done_reason, answer.eval_count), (True, "stop", 5))


@check("stream")
def _stream() -> None:
    chunks = list(client.chat(**_ask("count 5"), stream=True))
    equal("".join(chunk.message.content for chunk in chunks), "1, 2, 3, 4, 5")
    equal([chunk.done for chunk in chunks if chunk.done], [True])


@check("async stream")
def _asynchronous() -> None:
    async def collected() -> str:
        stream = await ollama.AsyncClient(host=URL).chat(**_ask("count 5"), stream=True)
        return "".join([chunk.message.content async for chunk in stream])

    equal(asyncio.run(collected()), "1, 2, 3, 4, 5")


@check("generate")
def _generate() -> None:
    equal(client.generate(MODEL, "say hello", system="Be brief.").response, "hello")
    equal(client.generate(MODEL, "say hello\x04", raw=True).response, "hello")
    equal(client.generate(MODEL, "").done_reason, "load")


@check("format")
def _format() -> None:
    answer = client.chat(**_ask(ANSWER), format=City.model_json_schema())
    equal(City.model_validate_json(answer.message.content), PARIS)
    equal(json.loads(client.chat(**_ask(ANSWER), format="json").message.content), PARIS.model_dump())


@check("think")
def _think() -> None:
    answer = client.chat(**_ask("say <think>so</think>yes"), think=True)
    equal((answer.message.thinking, answer.message.content), ("so", "yes"))


@check("tool loop")
def _tools() -> None:
    asked = _ask(ASK_FOR_WEATHER)
    message = client.chat(**asked, tools=[get_weather]).message
    (call,) = message.tool_calls
    result = get_weather(**call.function.arguments)
    asked["messages"] += [message, {"role": "tool", "tool_name": call.function.name, "content": result}]
    equal(WEATHER in client.chat(**asked, tools=[get_weather]).message.content, True)


@check("list, show, ps")
def _models() -> None:
    equal([model.model for model in client.list().models], [f"{MODEL}:latest"])
    equal("completion" in client.show(MODEL).capabilities, True)
    equal([model.name for model in client.ps().models], [f"{MODEL}:latest"])


@check("an image")
def _image() -> None:
    pictured = ollama.Client(host=IMAGES_URL)
    few = ollama.Options(num_predict=4)

    def tokens(*images: str) -> int:
        messages = [{"role": "user", "content": WHAT, **({"images": images} if images else {})}]
        return int(pictured.chat(IMAGES_MODEL, messages, options=few).prompt_eval_count)

    def generated(*images: str) -> int:
        return int(pictured.generate(IMAGES_MODEL, WHAT, images=images or None, options=few).prompt_eval_count)

    equal(tokens(PICTURE) - tokens(), PICTURE_TOKENS)
    equal(generated(PICTURE) - generated(), PICTURE_TOKENS)
    equal("vision" in pictured.show(IMAGES_MODEL).capabilities, True)


@check("errors")
def _errors() -> None:
    for ask, status in (
        (lambda: client.chat("gpt-9"), 404),
        (lambda: client.embed(MODEL, "x"), 400),
        (lambda: client.delete(MODEL), 400),
        (lambda: list(client.chat("gpt-9", stream=True)), 404),
    ):
        try:
            ask()
        except ollama.ResponseError as error:
            equal((error.status_code, bool(error.error)), (status, True))
        else:
            raise AssertionError("it was not refused")


run()
