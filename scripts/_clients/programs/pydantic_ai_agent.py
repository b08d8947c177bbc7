"""pydantic-ai, over chat completions and responses."""

import base64
from typing import Any

from pydantic_ai import Agent, BinaryContent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from _clients.programs import checks
from _clients.programs.checks import URL, City, call, equal, get_weather, run

provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
chat = OpenAIChatModel(checks.MODEL, provider=provider)


def check_chat() -> None:
    equal(Agent(chat).run_sync("say hello").output, "hello")


def check_output_by_a_call() -> None:
    agent: Any = Agent(chat, output_type=City)
    equal(agent.run_sync(call("final_result", **checks.PARIS.model_dump())).output, checks.PARIS)


def check_native_output() -> None:
    agent: Any = Agent(chat, output_type=NativeOutput(City))
    equal(agent.run_sync(checks.ANSWER).output, checks.PARIS)


def check_tool_loop() -> None:
    equal(checks.WEATHER in Agent(chat, tools=[get_weather]).run_sync(checks.ASK_FOR_WEATHER).output, True)


def check_tool_loop_over_responses() -> None:
    agent = Agent(OpenAIResponsesModel(checks.MODEL, provider=provider), tools=[get_weather])
    equal(checks.WEATHER in agent.run_sync(checks.ASK_FOR_WEATHER).output, True)


def check_an_image_over_chat_completions_and_responses() -> None:
    pictured = OpenAIProvider(base_url=f"{checks.MODELS_URL}/v1", api_key="none")
    image = BinaryContent(base64.b64decode(checks.PICTURE), media_type="image/png")
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        agent = Agent(kind(checks.IMAGES_MODEL, provider=pictured), model_settings={"max_tokens": 16, "temperature": 0})
        tokens = [agent.run_sync([*images, checks.WHAT]).usage.input_tokens for images in ([image], [])]
        equal(tokens[0] - tokens[1], checks.PICTURE_TOKENS)


run(globals())
