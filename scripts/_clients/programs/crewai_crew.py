"""CrewAI: a crew of one agent."""

from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from _clients.programs.checks import MODEL, PARIS, PARIS_JSON, URL, WEATHER, City, call, check, equal, get_weather, run

llm = LLM(model=f"openai/{MODEL}", base_url=f"{URL}/v1", api_key="none")


def _kickoff(prompt: str, *tools: Any, **options: Any) -> Any:
    agent = Agent(role="forecaster", goal="to answer", backstory="None.", llm=llm, tools=list(tools), max_iter=3)
    task = Task(description=f"\n{prompt}\n", expected_output="an answer", agent=agent, **options)
    return Crew(agents=[agent], tasks=[task], tracing=False).kickoff()


@check("call")
def _call() -> None:
    equal(llm.call("say hello"), "hello")


@check("a task")
def _task() -> None:
    equal(_kickoff("script: say Final Answer: hello").raw.removeprefix("Final Answer: "), "hello")


@check("a task's class")
def _class() -> None:
    equal(_kickoff(f"script: say {PARIS_JSON}", output_pydantic=City).pydantic, PARIS)


@check("a task's tool loop")
def _tools() -> None:
    script = f"script: {call('get_weather', city='Paris')}\nscript after degrees: say It has {WEATHER}."
    equal(WEATHER in _kickoff(script, tool("get_weather")(get_weather)).raw, True)


run()
