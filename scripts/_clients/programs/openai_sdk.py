"""OpenAI's Python SDK, of which the tests check the rest."""

import json
from typing import Any

import openai

from _clients.programs import checks
from _clients.programs.checks import URL, equal, get_weather, run

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": checks.PARAMETERS}}


def _user(content: str) -> Any:
    return {"role": "user", "content": content}


def check_chat() -> None:
    answer = client.chat.completions.create(model=checks.MODEL, messages=[_user("say hello")])
    equal(answer.choices[0].message.content, "hello")


def check_tool_loop() -> None:
    messages = [_user(checks.ASK_FOR_WEATHER)]
    message = client.chat.completions.create(model=checks.MODEL, messages=messages, tools=[TOOL]).choices[0].message
    (made,) = message.tool_calls
    result = get_weather(**json.loads(made.function.arguments))
    messages += [message, {"role": "tool", "tool_call_id": made.id, "content": result}]
    answer = client.chat.completions.create(model=checks.MODEL, messages=messages, tools=[TOOL])
    equal(checks.WEATHER in answer.choices[0].message.content, True)


def check_an_image() -> None:
    pictured = openai.OpenAI(base_url=f"{checks.MODELS_URL}/v1", api_key="none", max_retries=0)

    def tokens(*images: Any) -> int:
        messages: Any = [{"role": "user", "content": [*images, {"type": "text", "text": checks.WHAT}]}]
        answer = pictured.chat.completions.create(model=checks.IMAGES_MODEL, messages=messages, max_tokens=4)
        return int(answer.usage.prompt_tokens)

    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{checks.PICTURE}"}}
    equal(tokens(image) - tokens(), checks.PICTURE_TOKENS)


run(globals())
