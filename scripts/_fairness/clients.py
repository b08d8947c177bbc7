"""The two keys of a server, and their requests over real sockets, each on a connection of its own."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from _load.http import BrokenAnswer, Response, ask
from _load.server import HOST

from genai_server.tools.bench.bench_client import Server
from genai_server.tools.bench.measurement import Answer, AnswerError

# The key that attacks, the one that behaves, and the operator's.
ATTACKER, VICTIM, ADMIN = (f"{name}-0123456789abcdef" for name in ("alice", "bob", "admin"))
CHATS = "/v1/chat/completions"
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child")
# Seconds after which a request counts as refused.
PATIENCE = 60.0
# Seconds that a client of the attacker waits after a refusal.
_PAUSE = 0.5
_MARK = "fairness-6f1d2c"


class Refused(Exception):
    """A request of the key that behaves was not answered; the message says how it ended."""


@dataclass(frozen=True)
class Body:
    """The body of a request, and its type."""

    data: bytes
    type: str = "application/json"


def written(content: Any) -> Body:
    """An object as JSON."""
    return Body(json.dumps(content).encode())


def form(file: bytes, name: str, **fields: str) -> Body:
    """A form with a file."""
    texts = (f'--{_MARK}\r\ncontent-disposition: form-data; name="{key}"\r\n\r\n{fields[key]}\r\n' for key in fields)
    head = f'--{_MARK}\r\ncontent-disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    data = ("".join(texts) + head).encode() + file + f"\r\n--{_MARK}--\r\n".encode()
    return Body(data, f"multipart/form-data; boundary={_MARK}")


def chat(content: str, **fields: Any) -> dict[str, Any]:
    """The fields of a chat that is answered to its limit of tokens."""
    usual = {"max_tokens": 60, "ignore_eos": True, "temperature": 0}
    return {"messages": [{"role": "user", "content": content}], **usual, **fields}


@dataclass(frozen=True)
class Client:
    """The holder of a key."""

    port: int
    key: str
    chance: random.Random = field(default_factory=random.Random)

    def words(self, number: int) -> str:
        """New random words. A model with random weights has 1.1 tokens for each, the demo model two."""
        return " ".join(self.chance.choices(WORDS, k=number))

    def headers(self, type: str = "application/json") -> dict[str, str]:
        """The headers of a request with a body of this type."""
        return {"content-type": type, "authorization": f"Bearer {self.key}"}

    async def ask(self, path: str, body: Body | None = None, method: str = "POST") -> Response:
        """The complete answer to a request. Raises BrokenAnswer and OSError."""
        body = body or Body(b"")
        return await ask(self.port, method, path, body.data, self.headers(body.type))

    async def answer(self, path: str, body: Body) -> Response:
        """The complete answer to a POST. Raises Refused."""
        try:
            async with asyncio.timeout(PATIENCE):
                response = await self.ask(path, body)
        except (BrokenAnswer, OSError) as error:
            raise Refused(f"{type(error).__name__}: {error}") from None
        except TimeoutError:
            raise Refused(f"no answer for {PATIENCE:g} s") from None
        if response.status != 200:
            raise Refused(f"{response.status} {response.body[:200].decode(errors='replace')}")
        return response

    async def complete(self, path: str, body: Body) -> float:
        """Seconds to the end of the complete answer to a POST. Raises Refused."""
        began = time.perf_counter()
        await self.answer(path, body)
        return time.perf_counter() - began

    async def streamed(self, content: str, *, max_tokens: int, **fields: Any) -> Answer:
        """A streamed chat, read to its end. Raises Refused."""
        url = f"http://{HOST}:{self.port}"
        server = Server("", url, api_key=self.key, model=None, body={"ignore_eos": True, "temperature": 0})
        try:
            async with asyncio.timeout(PATIENCE):
                return (await server.ask(content, max_tokens, more=fields)).answer()
        except AnswerError as error:
            raise Refused(str(error)) from None
        except TimeoutError:
            raise Refused(f"no answer for {PATIENCE:g} s") from None
        finally:
            await server.close()

    async def first_token(self, content: str, **fields: Any) -> float:
        """Seconds to the first token of a streamed chat, which is read to its end. Raises Refused."""
        answer = await self.streamed(content, **fields)
        if answer.ttft is None:
            raise Refused("an answer without a token")
        return answer.ttft


@dataclass
class Tally:
    """How many requests of an attack have ended."""

    answered: int = 0
    refused: int = 0
    # An answer that says that the attack itself is wrong; empty if there is none.
    mistake: str = ""


@asynccontextmanager
async def keep_asking(
    client: Client, tally: Tally, clients: int, body: Callable[[], Body | Mapping[str, Any]], path: str = CHATS
) -> AsyncIterator[None]:
    """The key of `client` has this many clients, each with one request after another, until the block ends; then all of
    them leave. `body` makes each request's body. After a refusal or a broken answer a client waits a moment.
    """

    async def keep() -> None:
        while True:
            with suppress(BrokenAnswer, OSError):
                content = body()
                response = await client.ask(path, content if isinstance(content, Body) else written(content))
                if response.status == 200:
                    tally.answered += 1
                    continue
                if response.status in (400, 404, 422):
                    tally.mistake = response.body[:300].decode(errors="replace")
            tally.refused += 1
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
