"""Clients of each kind that a server meets, and the record of their answers."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .answers import Answer, WrongAnswer, error_code, read_answer
from .asked import ON_DEMAND, Asked, conversation_turns, long_question, on_demand, question, wrong
from .http import JSON, BrokenAnswer, ask, ask_json, exchange, request

# Errors that a request may get while engines are killed.
DEATHS = ("engine_died", "no_engine_ready", "generation_failed", "crash_loop")
# Errors that a request may get while the server is stopping.
STOPPING = (*DEATHS, "server_draining", "server_stopping")
# Errors that a request for a model that is not loaded may get.
_LOADING = ("models_busy", "model_unloaded", "model_not_ready")
_MAX_KEPT = 20
_PAUSE = 0.05
_SMALL_BUFFER = 2048
ADMIN = "/v1/admin/runtime_options"


@dataclass
class Books:
    """How many requests of each kind ended in which way, and the broken promises with examples."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def accuse(self, promise: str, details: str) -> None:
        """Note a broken promise."""
        self.broken[promise] += 1
        if len(self.examples) < _MAX_KEPT:
            self.examples.append(f"{promise}: {details}")


class Clients:
    """Sends requests to one server; `references` are the answers to `question(number)` without other load."""

    def __init__(self, port: int, references: dict[int, Answer], books: Books, chance: random.Random) -> None:
        self.books = books
        # Codes of the errors that a valid request may currently get.
        self.excused: tuple[str, ...] = ()
        # Whether connections may be refused or lost, because the server stops.
        self.is_stopping = False
        self._port = port
        self._references = references
        self._chance = chance
        kinds: list[tuple[Callable[[], Awaitable[None]], float]] = [
            (self.undisturbed, 0.50),
            (self.wrong, 0.18),
            (self.leaver, 0.10),
            (self.terminated, 0.08),
            (self.slow_reader, 0.07),
            (self.conversation, 0.06),
            (self.visitor, 0.01),
        ]
        self._kinds, self._weights = zip(*kinds, strict=True)
        self._visiting = asyncio.Lock()

    async def keep_asking(self, until: Callable[[], bool]) -> None:
        """One client after another, of any kind."""
        while not until():
            (client,) = self._chance.choices(self._kinds, self._weights)
            kind = client.__name__.replace("_", " ")
            try:
                await client()
            except (BrokenAnswer, WrongAnswer, OSError) as error:
                if self.is_stopping and not isinstance(error, WrongAnswer):
                    await asyncio.sleep(_PAUSE)
                    continue
                self.books.ends[kind, "no terminal answer"] += 1
                self.books.accuse("one terminal answer for each request", f"{kind}: {type(error).__name__}: {error}")

    async def undisturbed(self) -> None:
        """Expects the same answer as without other load."""
        number = self._chance.choice(list(self._references))
        self._compare("undisturbed", number, await self._answer(question(number)))

    async def wrong(self) -> None:
        """Expects a refusal with the right status."""
        asked = wrong(self._chance)
        response = await ask(self._port, "POST", asked.path, asked.body, JSON)
        code = error_code(response.status, bytes(response.body))
        self.books.ends["wrong", f"refused with {response.status}"] += 1
        if response.status != asked.expected and not (response.status == 503 and code in self.excused):
            details = f"{asked.path} {asked.body[:200]!r}: {response.status} {code}"
            self.books.accuse("bad requests are refused as such", details)

    async def leaver(self) -> None:
        """Disconnects in the queue, in prefill, or during the answer."""
        asked = long_question(self._chance)
        try:
            async with asyncio.timeout(self._chance.choice((0.003, 0.003, 0.01, 0.05, 0.3, 1.0))):
                await ask(self._port, "POST", asked.path, asked.body, JSON)
            self.books.ends["leaver", "ended before"] += 1
        except TimeoutError:
            self.books.ends["leaver", "left"] += 1

    async def terminated(self) -> None:
        """Expects that the operator ends its generation."""
        name = f"soak-{secrets.token_hex(8)}"
        asked = long_question(self._chance)
        answer, _ = await asyncio.gather(self._answer(asked, name), self._terminate(name))
        self._count("terminated", answer)

    async def _terminate(self, name: str) -> None:
        await asyncio.sleep(self._chance.choice((0.0, 0.02, 0.1, 0.5)))
        order = await ask_json(self._port, ADMIN, {"terminate_session": "1", "request_id": name})
        if order.status not in (200, 404, *((503,) if self.excused else ())):
            self.books.accuse("the operator is heard", f"{order.status} {bytes(order.body[:200])!r}")

    async def slow_reader(self) -> None:
        """Reads its answer slowly, through a small buffer."""
        number = self._chance.choice([n for n in self._references if question(n).streamed])
        self._compare("slow reader", number, await self._answer(question(number), slowly=True))

    async def conversation(self) -> None:
        """Stores a conversation, continues it with two responses, refers to and pages through its items, deletes it."""
        turns = conversation_turns(self._chance)
        created = await self._stored("POST", "/v1/conversations", {"items": turns})
        if created is None:
            return
        path = f"/v1/conversations/{created['id']}"
        page = await self._stored("GET", f"{path}/items?limit=100&order=asc")
        if page is not None:
            texts = [item["content"][0]["text"] for item in page["data"]]
            if texts != [turn["content"] for turn in turns]:
                self.books.accuse("stored items are returned in order", f"{texts}"[:200])
            references = [{"type": "item_reference", "id": item["id"]} for item in page["data"][-8:]]
            options = {"max_output_tokens": 8, "temperature": 0.0}
            asked = {"input": [*references, {"role": "user", "content": "Hello!"}], **options}
            await self._stored("POST", "/v1/responses", asked)
            await self._stored("POST", "/v1/responses", {"conversation": created["id"], "input": "Hello!", **options})
        await self._stored("DELETE", path)

    async def visitor(self) -> None:
        """Requests another model, which the server loads. Only one client does so at a time, so that each load unloads
        the other of two models, and never the one that all other requests use.
        """
        if self._visiting.locked():
            await self.undisturbed()
            return
        async with self._visiting:
            await self.visit(self._chance.choice(ON_DEMAND))

    async def visit(self, model: str) -> None:
        """Sends a request to a model with the same weights, and expects the same answer."""
        number = self._chance.choice(list(self._references))
        answer = await self._answer(on_demand(question(number), model))
        if answer.end != "finished" and answer.reason in _LOADING:
            self.books.ends["visitor", f"{answer.end}: {answer.reason}"] += 1
        else:
            self._compare("visitor", number, answer)

    async def _stored(self, method: str, path: str, body: Any = None) -> dict[str, Any] | None:
        """The answer of an endpoint of stored responses; None if the death of an engine explains its absence."""
        data = b"" if body is None else json.dumps(body).encode()
        response = await ask(self._port, method, path, data, JSON)
        if response.status == 200:
            self.books.ends["conversation", f"{method} finished"] += 1
            found: dict[str, Any] = response.json()
            return found
        code = error_code(response.status, bytes(response.body))
        self.books.ends["conversation", f"{method} refused: {code}"] += 1
        if code not in self.excused:
            self.books.accuse("what is right is answered", f"{method} {path}: {response.status} {code}")
        return None

    def _compare(self, kind: str, number: int, answer: Answer) -> None:
        """Count an answer to a question; a complete one equals that without other load."""
        if self._count(kind, answer) and answer != self._references[number]:
            self.books.accuse("undisturbed answers equal the reference", f"{kind}, question {number}: {answer}")

    def _count(self, kind: str, answer: Answer) -> bool:
        """Count an answer; returns whether it is complete."""
        self.books.ends[kind, answer.end if answer.end == "finished" else f"{answer.end}: {answer.reason}"] += 1
        if answer.end == "finished":
            return answer.reason != "terminated"
        if answer.reason not in self.excused:
            self.books.accuse("what is right is answered", f"{kind}: {answer}")
        return False

    async def _answer(self, asked: Asked, name: str = "", *, slowly: bool = False) -> Answer:
        headers = JSON | ({"x-request-id": name} if name else {})
        slow: dict[str, Any] = {"receive_buffer": _SMALL_BUFFER, "pause": _PAUSE} if slowly else {}
        response = await exchange(self._port, request("POST", asked.path, asked.body, headers), **slow)
        if response.status == 503:
            await asyncio.sleep(_PAUSE)
        return read_answer(response.status, bytes(response.body), streamed=asked.streamed)


async def ask_references(port: int, numbers: range) -> dict[int, Answer]:
    """The answer to each question without other load. Raises WrongAnswer and BrokenAnswer."""
    found = {}
    for number in numbers:
        asked = question(number)
        response = await ask(port, "POST", asked.path, asked.body, JSON)
        found[number] = read_answer(response.status, bytes(response.body), streamed=asked.streamed)
        if found[number].end != "finished":
            raise WrongAnswer(f"question {number} alone: {found[number]}")
    return found
