"""Attacks on an engine: places of its batch, the time for prompts, the queue, cached prefixes, and loaded models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from .clients import CHATS, Refused, chat, keep_asking, written
from .scenario import Attack, Family, Place, Scenario

# Words of a long prompt, which has 1,800 tokens with the demo model.
_LONG = 900
# The same in all requests of the key that behaves.
_PREFIX = " ".join(f"{number}" for number in range(400))
# Seconds after which a model in use gives way (genai_server.supervisor.model_pool), those that its answers take, and
# twice those of a load.
_MODEL_ALLOWANCE = 15.0 + 10.0 + 20.0


async def short_chat(place: Place) -> float:
    """Seconds to the first token of a chat with a new short prompt."""
    return await place.victim.first_token(place.victim.words(15), max_tokens=16)


def _chats(clients: int, num_words: int = 15, **fields: Any) -> Attack:
    """This many clients of the attacker, with new prompts."""

    def attack(place: Place) -> AbstractAsyncContextManager[None]:
        attacker = place.attacker
        return keep_asking(attacker, place.tally, clients, lambda: chat(attacker.words(num_words), **fields))

    return attack


@asynccontextmanager
async def _full_queue(place: Place) -> AsyncIterator[None]:
    """300 clients, of which most are refused."""
    async with _chats(300)(place):
        while True:
            if place.tally.refused:
                break
            await asyncio.sleep(0.05)
        yield


async def _continued(place: Place) -> float:
    """Seconds to the first token behind the prefix. Raises Refused if it is not cached any more."""
    found = await place.victim.streamed(f"{_PREFIX} {place.victim.words(5)}", max_tokens=4)
    if not found.cached_tokens or found.ttft is None:
        raise Refused("the prefix was evicted")
    return found.ttft


@asynccontextmanager
async def _short_prompts(place: Place) -> AsyncIterator[None]:
    """Twenty short prompts, one after another."""
    for number in range(20):
        await place.attacker.ask(CHATS, written(chat(f"{number} {place.attacker.words(9)}", max_tokens=2)))
    yield


async def _other_model(place: Place) -> float:
    """Seconds to the first token of the model that is not loaded."""
    await place.operator.first_token("hello", model="first", max_tokens=1)
    return await place.victim.first_token(place.victim.words(9), model="second", max_tokens=4)


async def _model_allowance(place: Place) -> float:
    return _MODEL_ALLOWANCE


SCHEDULING = Family(
    "scheduling",
    [
        Scenario("24 clients", short_chat, _chats(24)),
        Scenario("priority -1000", short_chat, _chats(24, priority=-1000)),
        Scenario("4 requests of n=16", short_chat, _chats(4, n=16, temperature=1)),
        Scenario("12 long prompts", short_chat, _chats(12, _LONG, max_tokens=16)),
        Scenario("16 long prompts", short_chat, _chats(16, _LONG, max_tokens=16)),
        Scenario("queue of 300", short_chat, _full_queue),
    ],
    {"GENAI_MAX_LENGTH": "2048"},
)
CACHE = Family(
    "cache", [Scenario("20 short prompts (prefix cache)", _continued, _short_prompts)], {"GENAI_MAX_LENGTH": "2048"}
)
_IN_USE = _chats(4, 9, model="first", max_tokens=16)
MODELS = Family(
    "models",
    [Scenario("a model in constant use", _other_model, _IN_USE, _model_allowance)],
    {"GENAI_MODELS": "first={model},second={model}", "GENAI_MAX_MODELS": "1", "GENAI_MODEL_DIR": ""},
)
