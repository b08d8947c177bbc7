"""The keys of a server, and their requests, each on a connection of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from _load.server import HOST

# The key that attacks, the one that behaves, and the operator's.
ATTACKER, VICTIM, ADMIN = (f"{name}-0123456789abcdef" for name in ("alice", "bob", "admin"))
CHATS = "/v1/chat/completions"
_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child")
# Seconds after which a request of the key that behaves counts as refused.
_PATIENCE = 60.0
# Seconds that a client of the attacker waits after a refusal.
_PAUSE = 0.5
# Refusals that show that the attack itself is wrong.
_MISTAKES = (400, 404, 422)

# A POST, by the arguments of `httpx.AsyncClient.post`.
Request = dict[str, Any]
Make = Callable[[], Request]


class Refused(Exception):
    """A request of the key that behaves was not answered; the message says how it ended."""


@dataclass
class Tally:
    """How many requests of an attack have ended."""

    answered: int = 0
    refused: int = 0
    # An answer that says that the attack itself is wrong; empty if there is none.
    mistake: str = ""


@dataclass(frozen=True)
class Place:
    """A running server, as the holders of its keys see it. `tally` counts in the process that attacks."""

    attacker: httpx.AsyncClient
    victim: httpx.AsyncClient
    operator: httpx.AsyncClient
    tally: Tally = field(default_factory=Tally)


@asynccontextmanager
async def place_at(port: int) -> AsyncIterator[Place]:
    """The server at this port."""

    def client(key: str, timeout: float | None) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        headers = {"authorization": f"Bearer {key}"}
        url = f"http://{HOST}:{port}"
        return httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=limits, trust_env=False)

    async with client(ATTACKER, None) as attacker, client(VICTIM, _PATIENCE) as victim, client(ADMIN, None) as operator:
        yield Place(attacker, victim, operator)


def words(number: int) -> str:
    """Random words. A model with random weights has 1.1 tokens for each, the demo model two."""
    return " ".join(random.choices(_WORDS, k=number))


def chat(content: Any, **fields: Any) -> Request:
    """A chat that is answered to its limit of tokens."""
    usual = {"messages": [{"role": "user", "content": content}], "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    return {"url": CHATS, "json": usual | fields}


async def answer(client: httpx.AsyncClient, request: Request) -> httpx.Response:
    """The complete answer, which knows how long it took. Raises Refused."""
    try:
        response = await client.post(**request)
    except httpx.HTTPError as error:
        raise Refused(f"{type(error).__name__}: {error}") from None
    if response.status_code != 200:
        raise Refused(f"{response.status_code} {response.text[:200]}")
    return response


@asynccontextmanager
async def keep_asking(place: Place, clients: int, make: Make) -> AsyncIterator[None]:
    """The attacker has this many clients, each with one request after another, until the block ends; then all of them
    leave. After a refusal or a broken answer a client waits a moment.
    """

    async def keep() -> None:
        while True:
            with suppress(httpx.HTTPError):
                response = await place.attacker.post(**make())
                if response.status_code == 200:
                    place.tally.answered += 1
                    continue
                if response.status_code in _MISTAKES:
                    place.tally.mistake = response.text[:300]
            place.tally.refused += 1
            await asyncio.sleep(_PAUSE)

    async with kept_running(keep, clients):
        yield


@asynccontextmanager
async def kept_running(keep: Callable[[], Coroutine[Any, Any, None]], number: int) -> AsyncIterator[None]:
    """This many tasks of an attack until the block ends, which cancels them and waits for their ends."""
    tasks = [asyncio.create_task(keep()) for _ in range(number)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
