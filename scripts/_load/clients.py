"""Clients of each kind that a server meets, and the books of what they were answered."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from .answers import Answer, WrongAnswer, read_answer
from .asked import Asked, long_question, question, wrong
from .http import BrokenAnswer, Exchange, ask_json

JSON = {"content-type": "application/json"}
# What a request may meet while engines are killed.
DEATHS = ("engine_died", "no_engine_ready", "generation_failed", "crash_loop")
_MOST_KEPT = 20
_PAUSE = 0.05
_SMALL_BUFFER = 2048
ADMIN = "/v1/admin/runtime_options"


@dataclass
class Books:
    """How many requests of each kind ended in which way, and what was promised and not kept, in words at first."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def count(self, kind: str, end: str) -> None:
        """One request has ended."""
        self.ends[kind, end] += 1

    def accuse(self, promise: str, details: str) -> None:
        """A promise was broken."""
        self.broken[promise] += 1
        if len(self.examples) < _MOST_KEPT:
            self.examples.append(f"{promise}: {details}")


class Clients:
    """Asks one server; `references` are the answers to `question(number)` when nobody else was there."""

    def __init__(self, port: int, references: dict[int, Answer], books: Books, chance: random.Random) -> None:
        self.books = books
        self.deaths_expected = False
        self._port = port
        self._references = references
        self._chance = chance
        kinds: list[tuple[Callable[[], Awaitable[None]], float]] = [
            (self.undisturbed, 0.55),
            (self.wrong, 0.20),
            (self.leaver, 0.10),
            (self.terminated, 0.08),
            (self.slow_reader, 0.07),
        ]
        self._kinds, self._weights = zip(*kinds, strict=True)

    async def keep_asking(self, until: Callable[[], bool]) -> None:
        """One client after another, of any kind."""
        while not until():
            (client,) = self._chance.choices(self._kinds, self._weights)
            kind = client.__name__.replace("_", " ")
            try:
                await client()
            except (BrokenAnswer, WrongAnswer, OSError) as error:
                self.books.count(kind, "no terminal answer")
                self.books.accuse("one terminal answer for each request", f"{kind}: {type(error).__name__}: {error}")

    async def undisturbed(self) -> None:
        """Gets what it would get alone."""
        number = self._chance.choice(list(self._references))
        answer = await self._answer(question(number))
        if self._count("undisturbed", answer) and answer != self._references[number]:
            self.books.accuse("undisturbed answers equal the reference", f"question {number}: {answer}")

    async def wrong(self) -> None:
        """Is refused, with the status that says whose fault it is."""
        asked = wrong(self._chance)
        status, answer = await self._ask(asked)
        self.books.count("wrong", f"refused with {status}")
        engine_needed = status == 503 and self.deaths_expected and answer.reason in DEATHS
        if str(status) != asked.expected and not engine_needed:
            self.books.accuse(
                "bad requests are refused as such", f"{asked.path} {asked.body[:200]!r}: {status} {answer}"
            )

    async def leaver(self) -> None:
        """Goes away in the queue, in prefill, or after some of the answer."""
        asked = long_question(self._chance)
        patience = self._chance.choice((0.0, 0.0, 0.01, 0.05, 0.3, 1.0))
        async with Exchange(self._port) as exchange:
            await exchange.send("POST", asked.path, asked.body, JSON)
            reading = asyncio.ensure_future(_read(exchange))
            await asyncio.wait({reading}, timeout=patience)
            ended = reading.done()
            reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        self.books.count("leaver", "ended before" if ended else "left")

    async def terminated(self) -> None:
        """Has its generation ended by the operator."""
        name = f"soak-{secrets.token_hex(8)}"
        asked = long_question(self._chance)
        answering = asyncio.ensure_future(self._ask(asked, name))
        await asyncio.sleep(self._chance.choice((0.0, 0.02, 0.1, 0.5)))
        order = await ask_json(self._port, ADMIN, {"terminate_session": "1", "request_id": name})
        if order.status not in (200, 404, *((503,) if self.deaths_expected else ())):
            self.books.accuse("the operator is heard", f"{order.status} {bytes(order.body[:200])!r}")
        _, answer = await answering
        self._count("terminated", answer)

    async def slow_reader(self) -> None:
        """Takes its answer through a small buffer, a little at a time."""
        number = self._chance.choice([n for n in self._references if question(n).streamed])
        answer = await self._answer(question(number), slowly=True)
        if self._count("slow reader", answer) and answer != self._references[number]:
            self.books.accuse("undisturbed answers equal the reference", f"question {number}, slowly: {answer}")

    def _count(self, kind: str, answer: Answer) -> bool:
        """Note an answer; returns whether it has come to an end of its own."""
        self.books.count(kind, answer.end if answer.end == "finished" else f"{answer.end}: {answer.reason}")
        if answer.end == "finished":
            return answer.reason != "terminated"
        if not (self.deaths_expected and answer.reason in DEATHS):
            self.books.accuse("what is right is answered", f"{kind}: {answer}")
        return False

    async def _answer(self, asked: Asked, *, slowly: bool = False) -> Answer:
        _, answer = await self._ask(asked, slowly=slowly)
        return answer

    async def _ask(self, asked: Asked, name: str = "", *, slowly: bool = False) -> tuple[int, Answer]:
        headers = JSON | ({"x-request-id": name} if name else {})
        async with Exchange(self._port, receive_buffer=_SMALL_BUFFER if slowly else None) as exchange:
            await exchange.send("POST", asked.path, asked.body, headers)
            status, body = await _read(exchange, pause=_PAUSE if slowly else 0.0)
        if status == 503:
            await asyncio.sleep(_PAUSE)
        return status, read_answer(status, body, streamed=asked.streamed)


async def _read(exchange: Exchange, *, pause: float = 0.0) -> tuple[int, bytes]:
    response = await exchange.response()
    async for piece in exchange.pieces():
        response.body += piece
        if pause:
            await asyncio.sleep(pause)
    await exchange.closed()
    return response.status, bytes(response.body)


async def ask_references(port: int, numbers: range) -> dict[int, Answer]:
    """What each question is answered when nobody else asks. Raises WrongAnswer and BrokenAnswer."""
    found = {}
    for number in numbers:
        asked = question(number)
        async with Exchange(port) as exchange:
            await exchange.send("POST", asked.path, asked.body, JSON)
            status, body = await _read(exchange)
        found[number] = read_answer(status, body, streamed=asked.streamed)
        if found[number].end != "finished":
            raise WrongAnswer(f"question {number} alone: {found[number]}")
    return found
