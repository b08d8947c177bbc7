"""An attack on cached prefixes: many short prompts, each of which could evict a long prefix of another key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from .clients import Refused, chat
from .scenario import Family, Place, Scenario

# The same in all requests of the key that behaves.
_PREFIX = " ".join(f"{number}" for number in range(400))


async def _continued(place: Place) -> float:
    """Seconds to the first token behind the prefix. Raises Refused if it is not cached any more."""
    found = await place.victim.streamed(f"{_PREFIX} {place.victim.words(5)}", max_tokens=4)
    if not found.num_cached:
        raise Refused("the prefix was evicted")
    return found.seconds


@asynccontextmanager
async def _short_prompts(place: Place) -> AsyncIterator[None]:
    """Twenty short prompts, one after another."""
    for number in range(20):
        await place.attacker.post("/v1/chat/completions", chat(f"{number} {place.attacker.words(9)}", max_tokens=2))
    yield


def _settings(folder: Path, model: Path) -> Mapping[str, str]:
    return {"GENAI_MAX_LENGTH": "2048"}


FAMILY = Family("cache", [Scenario("20 short prompts (prefix cache)", _continued, _short_prompts)], _settings)
