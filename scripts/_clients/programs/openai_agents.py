"""OpenAI's Agents SDK: its tool loop over both APIs, plain and streamed."""

import asyncio
from typing import Any

import agents
from openai import AsyncOpenAI

from _clients.programs.checks import ASK_FOR_WEATHER, MODEL, URL, WEATHER, check, equal, get_weather, run

agents.set_tracing_disabled(True)


def _loop(api: Any, *, streams: bool) -> None:
    async def answer() -> str:
        async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as client:
            model = api(model=MODEL, openai_client=client)
            agent = agents.Agent("forecaster", tools=[agents.function_tool(get_weather)], model=model)
            if not streams:
                return str((await agents.Runner.run(agent, ASK_FOR_WEATHER)).final_output)
            result = agents.Runner.run_streamed(agent, ASK_FOR_WEATHER)
            equal(any([event.type == "raw_response_event" async for event in result.stream_events()]), True)
            return str(result.final_output)

    equal(WEATHER in asyncio.run(answer()), True)


@check("tool loop over chat completions")
def _chat() -> None:
    _loop(agents.OpenAIChatCompletionsModel, streams=False)


@check("streamed tool loop over chat completions")
def _chat_streamed() -> None:
    _loop(agents.OpenAIChatCompletionsModel, streams=True)


@check("tool loop over responses")
def _responses() -> None:
    _loop(agents.OpenAIResponsesModel, streams=False)


@check("streamed tool loop over responses")
def _responses_streamed() -> None:
    _loop(agents.OpenAIResponsesModel, streams=True)


run()
