"""An agent framework for OpenAI's servers, pointed here: its complete tool loop on the demo model."""

import asyncio

import pytest
from openai import AsyncOpenAI

from tests.running_server import RunningServer

called: list[str] = []


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    called.append(city)
    return '{"temperature": 21}'


@pytest.mark.parametrize("api", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
@pytest.mark.parametrize("choice", ["required", None])
@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])
def test_agent_calls_its_tool_and_reports_the_result(
    demo: RunningServer, streams: bool, choice: str | None, api: str
) -> None:
    import agents  # takes a second, which each process that collects this module would spend

    agents.set_tracing_disabled(True)

    async def run(question: str) -> str:
        async with AsyncOpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
            model = getattr(agents, api)(model="demo", openai_client=client)
            chosen = agents.ModelSettings(tool_choice=choice, temperature=0)
            tool = agents.function_tool(get_weather)
            agent = agents.Agent("forecaster", tools=[tool], model=model, model_settings=chosen)
            if not streams:
                return str((await agents.Runner.run(agent, question)).final_output)
            result = agents.Runner.run_streamed(agent, question)
            assert [event async for event in result.stream_events() if event.type == "raw_response_event"]
            return str(result.final_output)

    called.clear()
    answer = asyncio.run(run("What is the weather in Paris?"))
    assert called == ["Paris"]
    assert "21" in answer
