"""DSPy: its adapters for text and JSON, streams, and a loop of tools."""

import asyncio
from typing import Any

import dspy

from _clients.programs.checks import MODEL, PARIS, PARIS_JSON, URL, WEATHER, City, check, equal, get_weather, run

dspy.configure(lm=dspy.LM(f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="none", cache=False, num_retries=0))


class Question(dspy.Signature):  # type: ignore[misc]
    """Answer with a city."""

    question: str = dspy.InputField()
    answer: City = dspy.OutputField()


def _said(**fields: str) -> str:
    """A script that says these fields as DSPy has them in text."""
    marked = "⏎⏎".join(f"[[ ## {name} ## ]]⏎{value}" for name, value in fields.items())
    return f"say {marked}⏎⏎[[ ## completed ## ]]"


@check("Predict")
def _predict() -> None:
    equal(dspy.Predict("question -> answer")(question=f"script: {_said(answer='hello')}").answer, "hello")


@check("stream")
def _stream() -> None:
    listeners = [dspy.streaming.StreamListener(signature_field_name="answer")]
    program = dspy.streamify(dspy.Predict("question -> answer"), stream_listeners=listeners)

    async def streamed() -> list[Any]:
        return [each async for each in program(question=f"script: {_said(answer='hello from the server')}")]

    found = asyncio.run(streamed())
    text = "".join(each.chunk for each in found if isinstance(each, dspy.streaming.StreamResponse))
    # Of the mark of the field's end it holds ten pieces back, and here a piece is a letter.
    equal(text.partition("[[")[0].strip(), "hello from the server")


@check("a class in text")
def _class() -> None:
    equal(dspy.Predict(Question)(question=f"script: {_said(answer=PARIS_JSON)}").answer, PARIS)


@check("a class by JSONAdapter")
def _json() -> None:
    with dspy.context(adapter=dspy.JSONAdapter()):
        equal(dspy.Predict(Question)(question=f'script: say {{"answer": {PARIS_JSON}}}').answer, PARIS)


@check("ReAct")
def _react() -> None:
    call = {"next_tool_name": "get_weather", "next_tool_args": '{"city": "Paris"}'}
    end = {"next_tool_name": "finish", "next_tool_args": "{}"}
    lines = [
        f"script: {_said(next_thought='I ask', **call)}",
        f"script after observation_0: {_said(next_thought='I know', **end)}",
        # The last prompt alone asks for this field.
        f"script after reasoning: {_said(reasoning='I know', answer=WEATHER)}",
    ]
    found = dspy.ReAct("question -> answer", tools=[get_weather])(question="\n".join(lines))
    equal(WEATHER in found.trajectory["observation_0"], True)
    equal(found.answer, WEATHER)


run()
