"""instructor, in each of its modes over OpenAI's and Anthropic's SDKs."""

from collections.abc import Callable, Iterable
from typing import Any

import instructor
from anthropic import Anthropic
from instructor import Mode
from openai import OpenAI

from _clients.programs.checks import ANSWER, MODEL, PARIS, PARIS_JSON, URL, City, call, check, equal, run

openai = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
anthropic = Anthropic(base_url=URL, api_key="none", max_retries=0)
CALL = call("City", **PARIS.model_dump())
MARKDOWN = f"script: say ```json⏎{PARIS_JSON}⏎```"
JSON = f"script: {ANSWER}"
# What the model is to say in each mode.
OPENAI = {
    Mode.TOOLS: CALL,
    Mode.TOOLS_STRICT: CALL,
    Mode.FUNCTIONS: CALL,
    Mode.PARALLEL_TOOLS: CALL,
    Mode.RESPONSES_TOOLS: CALL,
    Mode.RESPONSES_TOOLS_WITH_INBUILT_TOOLS: CALL,
    Mode.JSON: JSON,
    Mode.JSON_O1: JSON,
    Mode.JSON_SCHEMA: JSON,
    Mode.MD_JSON: MARKDOWN,
}
ANTHROPIC = {
    Mode.ANTHROPIC_TOOLS: CALL,
    Mode.ANTHROPIC_REASONING_TOOLS: CALL,
    Mode.ANTHROPIC_PARALLEL_TOOLS: CALL,
    Mode.ANTHROPIC_JSON: JSON,
}
PARALLEL = (Mode.PARALLEL_TOOLS, Mode.ANTHROPIC_PARALLEL_TOOLS)


def _extracts(patched: Any, mode: Mode, prompt: str, **options: Any) -> Callable[[], None]:
    def extract() -> None:
        wanted: Any = Iterable[City] if mode in PARALLEL else City
        messages = [{"role": "user", "content": prompt}]
        found = patched(mode).create(model=MODEL, messages=messages, response_model=wanted, max_retries=1, **options)
        equal((next(iter(found)) if mode in PARALLEL else found).model_dump(), PARIS.model_dump())

    return extract


for each, asked in OPENAI.items():
    check(each.value)(_extracts(lambda mode: instructor.from_openai(openai, mode=mode), each, asked))
for each, asked in ANTHROPIC.items():
    patch = _extracts(lambda mode: instructor.from_anthropic(anthropic, mode=mode), each, asked, max_tokens=2000)
    check(each.value)(patch)


@check("partial objects of a stream")
def _partial() -> None:
    patched = instructor.from_openai(openai, mode=Mode.TOOLS)
    messages: Any = [{"role": "user", "content": call("PartialCity", **PARIS.model_dump())}]
    *_, last = patched.chat.completions.create_partial(model=MODEL, messages=messages, response_model=City)
    equal(last.model_dump(), PARIS.model_dump())


run()
