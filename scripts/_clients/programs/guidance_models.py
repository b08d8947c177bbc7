"""guidance, by the models that it has for vLLM and for SGLang."""

import re
from typing import Any

from guidance import assistant, select, user
from guidance import gen as generate
from guidance.models.experimental import SglangModel, VLLMModel

from _clients.programs.checks import MODEL, URL, check, equal, run


def _ask(kind: Any, constrained: Any) -> str:
    lm = kind(MODEL, base_url=f"{URL}/v1", api_key="none", echo=False)
    with user():
        lm += "Hello!"
    with assistant():
        lm += constrained
    return str(lm["found"])


@check("VLLMModel, select")
def _select() -> None:
    equal(_ask(VLLMModel, select(["yes", "no"], name="found")) in ("yes", "no"), True)


@check("VLLMModel, a regular expression")
def _expression() -> None:
    found = _ask(VLLMModel, generate("found", regex="[a-f]{3}-[0-9]{2}"))
    equal(re.fullmatch("[a-f]{3}-[0-9]{2}", found) is not None, True)


@check("SglangModel, select")
def _sglang() -> None:
    equal(_ask(SglangModel, select(["yes", "no"], name="found")) in ("yes", "no"), True)


run()
