"""Inspect: evaluations of samples of its own, over chat completions and responses."""

from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import includes, match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

from _clients.programs.checks import ASK_FOR_WEATHER, MODEL, URL, WEATHER, check, equal, get_weather, run


def _weather() -> Any:
    """The tool, as Inspect makes it."""

    async def execute(city: str) -> str:
        """Get the weather of a city.

        Args:
            city: Its name.
        """
        return get_weather(city)

    return execute


TOOLS = use_tools(tool(name="get_weather")(_weather)())


def _accuracy(prompt: str, target: str, scorer: Any, *solvers: Any, **options: Any) -> float:
    """The part of two samples that are answered as they should be."""
    model = get_model(f"openai-api/genai/{MODEL}", base_url=f"{URL}/v1", api_key="none", **options)
    samples = [Sample(input=prompt, target=target) for _ in range(2)]
    task = Task(dataset=samples, solver=[*solvers, generate()], scorer=scorer)
    (log,) = eval(task, model=model, display="none", log_dir="logs")
    if log.results is None:
        raise AssertionError(log.error)
    return float(log.results.scores[0].metrics["accuracy"].value)


@check("answers")
def _answers() -> None:
    equal(_accuracy("say hello", "hello", match(location="exact")), 1.0)


@check("tool loop")
def _tools() -> None:
    equal(_accuracy(ASK_FOR_WEATHER, WEATHER, includes(), TOOLS), 1.0)


@check("tool loop over responses")
def _responses() -> None:
    equal(_accuracy(ASK_FOR_WEATHER, WEATHER, includes(), TOOLS, responses_api=True), 1.0)


run()
