"""An agent framework for OpenAI's servers, pointed here: its complete tool loops."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.running_server import SCRIPTED, RunningServer
from tests.server_here import run_here

called: list[str] = []


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    called.append(city)
    return '{"temperature": 21}'


@pytest.fixture
def agents() -> Any:
    """The framework, whose import takes a second, which each process that collects this module would spend."""
    import agents

    agents.set_tracing_disabled(True)
    called.clear()
    return agents


def sdk(server: RunningServer) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("api", "choice", "streams"),
    [
        ("OpenAIChatCompletionsModel", "required", False),
        ("OpenAIChatCompletionsModel", None, True),
        ("OpenAIResponsesModel", "required", True),
        ("OpenAIResponsesModel", None, False),
    ],
)
async def test_agent_calls_its_tool_and_reports_the_result(
    demo: RunningServer, agents: Any, api: str, choice: str | None, streams: bool
) -> None:
    question = "What is the weather in Paris?"
    async with sdk(demo) as client:
        model = getattr(agents, api)(model="demo", openai_client=client)
        chosen = agents.ModelSettings(tool_choice=choice, temperature=0)
        tools = [agents.function_tool(get_weather)]
        agent = agents.Agent("forecaster", tools=tools, model=model, model_settings=chosen)
        if streams:
            result = agents.Runner.run_streamed(agent, question)
            assert [event async for event in result.stream_events() if event.type == "raw_response_event"]
        else:
            result = await agents.Runner.run(agent, question)
    assert (called, "21" in str(result.final_output)) == (["Paris"], True)


def _turn(name: str, arguments: Any, result: str, number: int) -> str:
    """A question that the scripted model answers with a call, and with "done" once it reads the result."""
    call = f"<tool_call>⏎{json.dumps({'name': name, 'arguments': arguments})}⏎</tool_call>"
    return f"turn {number}\nscript: say {call}\nscript after {result}: say done {number}"


TURNS: list[tuple[str, Any, str]] = [
    ("shell", {"commands": ["ls", "pwd"]}, "LISTED"),
    ("apply_patch", {"type": "create_file", "path": "a.txt", "diff": "+a"}, "CREATED"),
    ("note", {"input": "so\n"}, "NOTED"),
    ("get_weather", {"city": "Paris"}, "temperature"),
    ("shell", {"commands": ["false"]}, "LISTED"),
]


def test_an_agent_with_tools_of_all_kinds_has_a_session_of_ten_turns(own_folder: Path, agents: Any) -> None:
    ran: list[Any] = []

    async def shell(request: Any) -> Any:
        ran.append(request.data.action.commands)
        outcome = agents.ShellCallOutcome(type="exit", exit_code=0)
        return agents.ShellResult(output=[agents.ShellCommandOutput(stdout="LISTED", outcome=outcome)])

    async def note(context: Any, text: str) -> str:
        ran.append(text)
        return "NOTED"

    class Editor:
        def create_file(self, operation: Any) -> Any:
            ran.append((operation.path, operation.diff))
            return agents.editor.ApplyPatchResult(status="completed", output="CREATED")

        update_file = delete_file = create_file

    async def run(server: RunningServer) -> list[str]:
        async with sdk(server) as client:
            tools = [
                agents.ShellTool(executor=shell),
                agents.ApplyPatchTool(editor=Editor()),
                agents.CustomTool(name="note", description="Take a note.", on_invoke_tool=note),
                agents.function_tool(get_weather),
            ]
            model = agents.OpenAIResponsesModel(model="demo", openai_client=client)
            agent = agents.Agent("worker", tools=tools, model=model)
            session = agents.SQLiteSession("session")
            answers = []
            for number, turn in enumerate(TURNS * 2):
                question = _turn(*turn, number)
                if number % 2:
                    result = agents.Runner.run_streamed(agent, question, session=session)
                    assert [event async for event in result.stream_events()]
                else:
                    result = await agents.Runner.run(agent, question, session=session)
                answers.append(str(result.final_output))
            session.close()
            return answers

    with run_here(own_folder, *SCRIPTED, "--max-length", "4000") as server:
        assert asyncio.run(run(server)) == [f"done {number}" for number in range(10)]
    assert ran == [["ls", "pwd"], ("a.txt", "+a"), "so\n", ["false"]] * 2
    assert called == ["Paris"] * 2
