"""litellm."""

import json
from typing import Any

import litellm

from _clients.programs.checks import (
    ANSWER,
    ASK_FOR_WEATHER,
    IMAGES_MODEL,
    IMAGES_URL,
    PARAMETERS,
    PARIS,
    PICTURE,
    PICTURE_TOKENS,
    WEATHER,
    WHAT,
    City,
    check,
    equal,
    get_weather,
    recipe,
    run,
)

completion = recipe()["completion"]


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


@check("chat")
def _chat() -> None:
    equal(completion(messages=[_user("say hello")]).choices[0].message.content, "hello")


@check("stream")
def _stream() -> None:
    chunks = completion(messages=[_user("count 5")], stream=True)
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), "1, 2, 3, 4, 5")


@check("response_format")
def _structured() -> None:
    answer = completion(messages=[_user(ANSWER)], response_format=City)
    equal(City.model_validate_json(answer.choices[0].message.content), PARIS)


@check("tool loop")
def _tools() -> None:
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
    messages: list[Any] = [_user(ASK_FOR_WEATHER)]
    message = completion(messages=messages, tools=tools).choices[0].message
    (made,) = message.tool_calls
    result = get_weather(**json.loads(made.function.arguments))
    messages += [message, {"role": "tool", "tool_call_id": made.id, "content": result}]
    equal(WEATHER in completion(messages=messages, tools=tools).choices[0].message.content, True)


@check("an image over chat completions and messages")
def _image() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    for provider, url in (("openai", f"{IMAGES_URL}/v1"), ("anthropic", IMAGES_URL)):

        def tokens(*images: Any, provider: str = provider, url: str = url) -> int:
            messages = [{"role": "user", "content": [*images, {"type": "text", "text": WHAT}]}]
            model = f"{provider}/{IMAGES_MODEL}"
            usage = litellm.completion(model, messages, api_base=url, api_key="none", max_tokens=4).usage
            return int(usage.prompt_tokens)

        equal(tokens(image) - tokens(), PICTURE_TOKENS)


run()
