"""An attack on the one model that is loaded at a time: another one in constant use."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from _load.http import Response

from .clients import chat, keep_asking
from .scenario import Family, Place, Scenario

# Seconds after which a model in use gives way (genai_server.supervisor.model_pool), those that its answers take, and
# twice those of a load.
_ALLOWANCE = 15.0 + 10.0 + 20.0


async def _other_model(place: Place) -> float:
    """Seconds to the first token of the model that is not loaded."""
    await place.operator.first_token("hello", model="first", max_tokens=1)
    return await place.victim.first_token(place.victim.words(9), model="second", max_tokens=4)


def _constant_use(place: Place) -> AbstractAsyncContextManager[None]:
    async def ask(number: int) -> Response:
        content = place.attacker.words(9)
        return await place.attacker.post("/v1/chat/completions", chat(content, model="first", max_tokens=16))

    return keep_asking(ask, 4, place.tally)


async def _allowance(place: Place) -> float:
    return _ALLOWANCE


def _settings(folder: Path, model: Path) -> Mapping[str, str]:
    return {"GENAI_MODELS": f"first={model},second={model}", "GENAI_MAX_MODELS": "1", "GENAI_MODEL_DIR": ""}


FAMILY = Family("models", [Scenario("a model in constant use", _other_model, _constant_use, _allowance)], _settings)
