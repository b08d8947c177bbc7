"""Agno, over chat completions and responses."""

from typing import Any

from agno.agent import Agent
from agno.models.openai import OpenAIResponses
from agno.models.openai.like import OpenAILike

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


def _agent(api: Any = OpenAILike, **options: Any) -> Any:
    return Agent(model=api(id=MODEL, base_url=f"{URL}/v1", api_key="none"), telemetry=False, **options)


@check("chat")
def _chat() -> None:
    equal(_agent().run("say hello").content, "hello")


@check("stream")
def _stream() -> None:
    equal("".join(event.content or "" for event in _agent().run("count 5", stream=True)), "1, 2, 3, 4, 5")


@check("a class")
def _class() -> None:
    equal(_agent(output_schema=City).run(f"script: {ANSWER}").content, PARIS)


@check("tool loop")
def _tools() -> None:
    equal(WEATHER in _agent(tools=[get_weather]).run(ASK_FOR_WEATHER).content, True)


@check("tool loop over responses")
def _responses() -> None:
    equal(WEATHER in _agent(OpenAIResponses, tools=[get_weather]).run(ASK_FOR_WEATHER).content, True)


run()
