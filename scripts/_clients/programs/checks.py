"""What the Python programs share. Each runs in its client's environment, which has nothing of genai-server's.

A program prints a line of JSON for each check.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from pydantic import BaseModel

# The server's, without /v1.
URL = os.environ["CHECKED_URL"]
MODEL = "demo"
# Another server, whose model reads images; its answers have no meaning.
MODELS_URL = os.environ["CHECKED_MODELS_URL"]
IMAGES_MODEL = os.environ["CHECKED_IMAGES_MODEL"]
# A PNG in base64, and its tokens in a prompt of that model.
PICTURE = os.environ["CHECKED_PICTURE"]
PICTURE_TOKENS = int(os.environ["CHECKED_PICTURE_TOKENS"])
WHAT = "What is this?"


class City(BaseModel):
    """A class that answers are parsed to."""

    name: str
    people: int


PARIS = City(name="Paris", people=2100000)
# With the white space that answers to a schema have.
PARIS_JSON = json.dumps(PARIS.model_dump())
ANSWER = f"say {PARIS_JSON}"
WEATHER = "21 degrees"

# The demo models for embeddings and reranking know which of these the question means: the first.
QUESTION = "Which of these is about France?"
ABOUT = ["Paris is the capital of France.", "It will rain all afternoon.", "The cat sleeps on the sofa."]


def nearest(question: list[float], texts: list[list[float]]) -> None:
    """Fail unless the first of the texts' vectors is the nearest to the question's."""
    near = [sum(a * b for a, b in zip(question, text, strict=True)) for text in texts]
    equal(near.index(max(near)), 0)


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"{WEATHER} in {city}"


def call(name: str, /, **arguments: Any) -> str:
    """A prompt that the scripted model answers with this call."""
    written = json.dumps({"name": name, "arguments": arguments})
    return f"say <tool_call>⏎{written}⏎</tool_call>"


# The model repeats the last line of its prompt, so the tool's result is the answer after the call.
ASK_FOR_WEATHER = call("get_weather", city="Paris")
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def equal(found: Any, wanted: Any) -> None:
    """Fail unless both are equal."""
    if found != wanted:
        raise AssertionError(f"{found!r} instead of {wanted!r}")


def recipe() -> dict[str, Any]:
    """Run the lines that its page shows for the client; returns the names that they define."""
    names: dict[str, Any] = {}
    exec(os.environ["CHECKED_RECIPE"], names)
    return names


def run(names: dict[str, Any]) -> None:
    """Run all functions of a program, given by its global names, that begin with `check_`."""
    for name, function in list(names.items()):
        if not name.startswith("check_"):
            continue
        why = ""
        try:
            function()
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            why = f"{type(error).__name__}: {error}"
        print(json.dumps({"check": name.removeprefix("check_").replace("_", " "), "why": why}), flush=True)
