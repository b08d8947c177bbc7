"""instructor, over OpenAI's SDK."""

from typing import Any

import instructor
from openai import OpenAI

from _clients.programs.checks import ANSWER, MODEL, PARIS, PARIS_JSON, URL, City, call, check, equal, run

client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


def _extract(mode: Any, prompt: str) -> Any:
    patched = instructor.from_openai(client, mode=mode)
    messages: Any = [{"role": "user", "content": prompt}]
    return patched.chat.completions.create(model=MODEL, messages=messages, response_model=City, max_retries=1)


@check("tools")
def _tools() -> None:
    equal(_extract(instructor.Mode.TOOLS, call("City", **PARIS.model_dump())).model_dump(), PARIS.model_dump())


@check("JSON in Markdown")
def _json() -> None:
    prompt = f"script: say ```json⏎{PARIS_JSON}⏎```"
    equal(_extract(instructor.Mode.MD_JSON, prompt).model_dump(), PARIS.model_dump())


@check("JSON schema")
def _schema() -> None:
    equal(_extract(instructor.Mode.JSON_SCHEMA, f"script: {ANSWER}").model_dump(), PARIS.model_dump())


@check("partial objects of a stream")
def _partial() -> None:
    patched = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    messages: Any = [{"role": "user", "content": call("PartialCity", **PARIS.model_dump())}]
    *_, last = patched.chat.completions.create_partial(model=MODEL, messages=messages, response_model=City)
    equal(last.model_dump(), PARIS.model_dump())


run()
