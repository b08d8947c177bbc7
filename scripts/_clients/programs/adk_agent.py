"""Google's Agent Development Kit, over litellm."""

import asyncio
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

from _clients.programs.checks import ASK_FOR_WEATHER, MODEL, URL, WEATHER, check, equal, get_weather, run


def _events(prompt: str, mode: Any = StreamingMode.NONE, **options: Any) -> list[Any]:
    """All events of an agent with this prompt."""

    async def found() -> list[Any]:
        model = LiteLlm(model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="none")
        runner = InMemoryRunner(agent=LlmAgent(name="forecaster", model=model, **options), app_name="checked")
        session = await runner.session_service.create_session(app_name="checked", user_id="1")
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        config = RunConfig(streaming_mode=mode)
        events = runner.run_async(user_id="1", session_id=session.id, new_message=message, run_config=config)
        return [event async for event in events]

    return asyncio.run(found())


def _text(event: Any) -> str:
    return "".join(part.text or "" for part in event.content.parts)


@check("chat")
def _chat() -> None:
    equal(_text(_events("say hello")[-1]), "hello")


@check("stream")
def _stream() -> None:
    pieces = [_text(event) for event in _events("count 5", StreamingMode.SSE) if event.partial]
    equal(("".join(pieces), len(pieces) > 1), ("1, 2, 3, 4, 5", True))


@check("tool loop")
def _tools() -> None:
    equal(WEATHER in _text(_events(ASK_FOR_WEATHER, tools=[get_weather])[-1]), True)


@check("streamed tool loop")
def _tools_streamed() -> None:
    equal(WEATHER in _text(_events(ASK_FOR_WEATHER, StreamingMode.SSE, tools=[get_weather])[-1]), True)


run()
