"""Attacks on the places of a device, the time for prompts, and the queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from _load.http import Response

from .clients import chat, keep_asking
from .scenario import Family, Place, Scenario

# Words of a long prompt, which has 1,800 tokens with the demo model.
_LONG = 900


async def short_chat(place: Place) -> float:
    """Seconds to the first token of a chat with a new short prompt."""
    return await place.victim.first_token(place.victim.words(15), max_tokens=16)


def _chats(place: Place, clients: int, num_words: int = 15, **fields: Any) -> AbstractAsyncContextManager[None]:
    """This many clients of the attacker, with new prompts."""
    attacker = place.attacker

    async def ask(number: int) -> Response:
        return await attacker.post("/v1/chat/completions", chat(attacker.words(num_words), **fields))

    return keep_asking(ask, clients, place.tally)


@asynccontextmanager
async def _full_queue(place: Place) -> AsyncIterator[None]:
    """300 clients, of which most are refused."""
    async with _chats(place, 300):
        while True:
            if place.tally.refused:
                break
            await asyncio.sleep(0.05)
        yield


def _settings(folder: Path, model: Path) -> Mapping[str, str]:
    return {"GENAI_MAX_LENGTH": "2048"}


FAMILY = Family(
    "scheduling",
    [
        Scenario("24 clients", short_chat, lambda place: _chats(place, 24)),
        Scenario("priority -1000", short_chat, lambda place: _chats(place, 24, priority=-1000)),
        Scenario("4 requests of n=16", short_chat, lambda place: _chats(place, 4, n=16, temperature=1)),
        Scenario("12 long prompts", short_chat, lambda place: _chats(place, 12, _LONG, max_tokens=16)),
        Scenario("16 long prompts", short_chat, lambda place: _chats(place, 16, _LONG, max_tokens=16)),
        Scenario("queue of 300", short_chat, _full_queue),
    ],
    _settings,
)
