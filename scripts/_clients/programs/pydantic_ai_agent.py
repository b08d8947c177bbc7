"""pydantic-ai, over chat completions and responses."""

import base64
from typing import Any

from pydantic_ai import Agent, BinaryContent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

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
    call,
    check,
    equal,
    get_weather,
    run,
)

provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
chat = OpenAIChatModel(MODEL, provider=provider)


@check("chat")
def _chat() -> None:
    equal(Agent(chat).run_sync("say hello").output, "hello")


@check("output by a call")
def _output() -> None:
    agent: Any = Agent(chat, output_type=City)
    equal(agent.run_sync(call("final_result", **PARIS.model_dump())).output, PARIS)


@check("native output")
def _native() -> None:
    agent: Any = Agent(chat, output_type=NativeOutput(City))
    equal(agent.run_sync(ANSWER).output, PARIS)


@check("tool loop")
def _tools() -> None:
    equal(WEATHER in Agent(chat, tools=[get_weather]).run_sync(ASK_FOR_WEATHER).output, True)


@check("tool loop over responses")
def _responses() -> None:
    agent = Agent(OpenAIResponsesModel(MODEL, provider=provider), tools=[get_weather])
    equal(WEATHER in agent.run_sync(ASK_FOR_WEATHER).output, True)


@check("an image over chat completions and responses")
def _image() -> None:
    pictured = OpenAIProvider(base_url=f"{IMAGES_URL}/v1", api_key="none")
    image = BinaryContent(base64.b64decode(PICTURE), media_type="image/png")
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        agent = Agent(kind(IMAGES_MODEL, provider=pictured), model_settings={"max_tokens": 16, "temperature": 0})
        tokens = [agent.run_sync([*images, WHAT]).usage.input_tokens for images in ([image], [])]
        equal(tokens[0] - tokens[1], PICTURE_TOKENS)


run()
