"""AutoGen, with `autogen-agentchat` and `autogen-ext`."""

import asyncio
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_ext.models.openai import OpenAIChatCompletionClient

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

_KNOWN: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "family": "unknown",
}


def _messages(task: str, **options: Any) -> list[Any]:
    """All messages and events of an agent with this task."""

    async def streamed() -> list[Any]:
        client = OpenAIChatCompletionClient(model=MODEL, base_url=f"{URL}/v1", api_key="none", model_info=_KNOWN)
        agent = AssistantAgent("forecaster", model_client=client, **options)
        found = [each async for each in agent.run_stream(task=task) if not isinstance(each, TaskResult)]
        await client.close()
        return found

    return asyncio.run(streamed())


@check("chat")
def _chat() -> None:
    equal(_messages("say hello")[-1].content, "hello")


@check("stream")
def _stream() -> None:
    found = _messages("count 5", model_client_stream=True)
    chunks = [each.content for each in found if isinstance(each, ModelClientStreamingChunkEvent)]
    equal(("".join(chunks), len(chunks) > 1), ("1, 2, 3, 4, 5", True))


@check("a class")
def _class() -> None:
    equal(_messages(ANSWER, output_content_type=City)[-1].content, PARIS)


@check("tool loop")
def _tools() -> None:
    found = _messages(ASK_FOR_WEATHER, tools=[get_weather], reflect_on_tool_use=True)[-1]
    equal((WEATHER in found.content, type(found).__name__), (True, "TextMessage"))


@check("streamed tool loop")
def _tools_streamed() -> None:
    found = _messages(ASK_FOR_WEATHER, tools=[get_weather], reflect_on_tool_use=True, model_client_stream=True)[-1]
    equal((WEATHER in found.content, type(found).__name__), (True, "TextMessage"))


run()
