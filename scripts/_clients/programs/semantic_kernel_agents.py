"""Semantic Kernel: its chat service and an agent."""

import asyncio
from typing import Annotated, Any

from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function

from _clients.programs.checks import (
    ANSWER,
    MODEL,
    PARIS,
    URL,
    WEATHER,
    City,
    call,
    check,
    equal,
    get_weather,
    run,
)


class Weather:
    """A plugin."""

    @kernel_function(name="get_weather", description="Get the weather of a city.")  # type: ignore[untyped-decorator]
    def get(self, city: Annotated[str, "The city."]) -> str:
        """Get the weather of a city."""
        return get_weather(city)


_ASK = call("Weather-get_weather", city="Paris")


def _service() -> OpenAIChatCompletion:
    return OpenAIChatCompletion(MODEL, async_client=AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0))


def _history(text: str) -> ChatHistory:
    history = ChatHistory()
    history.add_user_message(text)
    return history


@check("chat")
def _chat() -> None:
    found: Any = asyncio.run(
        _service().get_chat_message_content(_history("say hello"), OpenAIChatPromptExecutionSettings())
    )
    equal(found.content, "hello")


@check("stream")
def _stream() -> None:
    async def streamed() -> str:
        pieces = _service().get_streaming_chat_message_content(_history("count 5"), OpenAIChatPromptExecutionSettings())
        return "".join([str(piece) async for piece in pieces])

    equal(asyncio.run(streamed()), "1, 2, 3, 4, 5")


@check("response_format")
def _class() -> None:
    settings = OpenAIChatPromptExecutionSettings(response_format=City)
    found: Any = asyncio.run(_service().get_chat_message_content(_history(ANSWER), settings))
    equal(City.model_validate_json(found.content), PARIS)


@check("an agent's tool loop")
def _tools() -> None:
    async def asked() -> str:
        agent = ChatCompletionAgent(service=_service(), name="forecaster", plugins=[Weather()])
        return str((await agent.get_response(messages=_ASK)).content)

    equal(WEATHER in asyncio.run(asked()), True)


@check("an agent's streamed tool loop")
def _tools_streamed() -> None:
    async def asked() -> str:
        agent = ChatCompletionAgent(service=_service(), name="forecaster", plugins=[Weather()])
        return "".join([str(each.content) async for each in agent.invoke_stream(messages=_ASK)])

    equal(WEATHER in asyncio.run(asked()), True)


run()
