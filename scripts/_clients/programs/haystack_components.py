"""Haystack: its generators and its agent."""

from typing import Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

from _clients.programs.checks import (
    ANSWER,
    ASK_FOR_WEATHER,
    MODEL,
    PARIS,
    URL,
    WEATHER,
    City,
    check,
    equal,
    get_weather,
    run,
)


def _generator(kind: Any = OpenAIChatGenerator, **options: Any) -> Any:
    return kind(api_key=Secret.from_token("none"), model=MODEL, api_base_url=f"{URL}/v1", **options)


def _asked(text: str) -> list[ChatMessage]:
    return [ChatMessage.from_user(text)]


@check("chat")
def _chat() -> None:
    equal(_generator().run(_asked("say hello"))["replies"][0].text, "hello")


@check("stream")
def _stream() -> None:
    pieces: list[str] = []
    _generator(streaming_callback=lambda chunk: pieces.append(chunk.content)).run(_asked("count 5"))
    equal(("".join(pieces), len(pieces) > 1), ("1, 2, 3, 4, 5", True))


@check("response_format")
def _format() -> None:
    found = _generator(generation_kwargs={"response_format": City}).run(_asked(ANSWER))["replies"][0].text
    equal(City.model_validate_json(found), PARIS)


@check("an agent's tool loop")
def _tools() -> None:
    agent = Agent(chat_generator=_generator(), tools=[create_tool_from_function(get_weather)])
    equal(WEATHER in agent.run(messages=_asked(ASK_FOR_WEATHER))["last_message"].text, True)


@check("an agent's tool loop over responses")
def _responses() -> None:
    generator = _generator(OpenAIResponsesChatGenerator)
    agent = Agent(chat_generator=generator, tools=[create_tool_from_function(get_weather)])
    equal(WEATHER in agent.run(messages=_asked(ASK_FOR_WEATHER))["last_message"].text, True)


run()
