"""Strands Agents, with its models for OpenAI's and Anthropic's API."""

from typing import Any

from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel

from _clients.programs.checks import (
    ASK_FOR_WEATHER,
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

openai = OpenAIModel(client_args={"api_key": "none", "base_url": f"{URL}/v1"}, model_id=MODEL)
anthropic = AnthropicModel(client_args={"api_key": "none", "base_url": URL}, model_id=MODEL, max_tokens=500)


def _agent(model: Any = openai, **options: Any) -> Any:
    return Agent(model=model, callback_handler=None, **options)


@check("chat")
def _chat() -> None:
    equal(str(_agent()("say hello")).strip(), "hello")


@check("a class")
def _class() -> None:
    asked = call("City", **PARIS.model_dump())
    equal(_agent()(asked, structured_output_model=City).structured_output, PARIS)


@check("tool loop")
def _tools() -> None:
    equal(WEATHER in str(_agent(tools=[tool(get_weather)])(ASK_FOR_WEATHER)), True)


@check("tool loop over messages")
def _messages() -> None:
    equal(WEATHER in str(_agent(anthropic, tools=[tool(get_weather)])(ASK_FOR_WEATHER)), True)


run()
