"""litellm."""

import json
from typing import Any

import litellm

from _clients.programs import checks
from _clients.programs.checks import City, equal, get_weather, recipe, run

completion = recipe()["completion"]


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def check_chat() -> None:
    equal(completion(messages=[_user("say hello")]).choices[0].message.content, "hello")


def check_stream() -> None:
    chunks = completion(messages=[_user("count 5")], stream=True)
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks), "1, 2, 3, 4, 5")


def check_response_format() -> None:
    answer = completion(messages=[_user(checks.ANSWER)], response_format=City)
    equal(City.model_validate_json(answer.choices[0].message.content), checks.PARIS)


def check_tool_loop() -> None:
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": checks.PARAMETERS}}]
    messages: list[Any] = [_user(checks.ASK_FOR_WEATHER)]
    message = completion(messages=messages, tools=tools).choices[0].message
    (made,) = message.tool_calls
    result = get_weather(**json.loads(made.function.arguments))
    messages += [message, {"role": "tool", "tool_call_id": made.id, "content": result}]
    equal(checks.WEATHER in completion(messages=messages, tools=tools).choices[0].message.content, True)


def check_an_image_over_chat_completions_and_messages() -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{checks.PICTURE}"}}
    for provider, url in (("openai", f"{checks.MODELS_URL}/v1"), ("anthropic", checks.MODELS_URL)):

        def tokens(*images: Any, provider: str = provider, url: str = url) -> int:
            messages = [{"role": "user", "content": [*images, {"type": "text", "text": checks.WHAT}]}]
            model = f"{provider}/{checks.IMAGES_MODEL}"
            usage = litellm.completion(model, messages, api_base=url, api_key="none", max_tokens=4).usage
            return int(usage.prompt_tokens)

        equal(tokens(image) - tokens(), checks.PICTURE_TOKENS)


run(globals())
