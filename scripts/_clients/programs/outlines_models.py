"""outlines, by the models that it has for SGLang and for vLLM."""

import re
from typing import Any, Literal

import outlines
from openai import OpenAI
from outlines.types import CFG, Regex
from pydantic import BaseModel

from _clients.programs.checks import MODEL, URL, check, equal, run

client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
MODELS = {"from_sglang": outlines.from_sglang(client, MODEL), "from_vllm": outlines.from_vllm(client, MODEL)}
_LARK = 'start: "a" (" b" | " c")'


class Mood(BaseModel):
    """A class that answers are parsed to."""

    mood: Literal["good", "bad"]


def _asks(name: str, model: Any) -> None:
    @check(f"{name}, a choice")
    def _choice() -> None:
        equal(model("Hello!", Literal["yes", "no"]) in ("yes", "no"), True)

    @check(f"{name}, a regular expression")
    def _expression() -> None:
        equal(re.fullmatch("[a-f]{3}", model("Hello!", Regex("[a-f]{3}"))) is not None, True)

    @check(f"{name}, a class")
    def _class() -> None:
        equal(Mood.model_validate_json(model("Hello!", Mood)).mood in ("good", "bad"), True)

    @check(f"{name}, a grammar")
    def _grammar() -> None:
        equal(model("Hello!", CFG(_LARK)) in ("a b", "a c"), True)


for _name, _model in MODELS.items():
    _asks(_name, _model)
run()
