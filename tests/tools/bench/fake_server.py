"""A server with a minimal part of OpenAI's protocol: no model list, no health, and prompts of known duration."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from genai_server.tools.bench.bench_client import Recording, Server

TOKENS_PER_WORD, TEMPLATE_TOKENS = 2, 10


@dataclass
class FakeServer:
    """Seconds for each output token, for each one during a prompt, and for each prompt token.

    Streams have as many tokens in a chunk, and the usage where `has_usage`. It keeps the heads and bodies of requests.
    """

    token: float = 0.001
    disturbed_token: float = 0.02
    prompt_token: float = 0.0
    in_a_chunk: int = 1
    has_usage: bool = True
    url: str = ""
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)
    _prefilling: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection with one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            if not head.startswith("post /v1/chat/completions "):
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                return
            size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            body = json.loads(await reader.readexactly(size))
            self.heads.append(head)
            self.bodies.append(body)
            if "refuse" in body:
                writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 9\r\nconnection: close\r\n\r\nno refuse")
                return
            await (self._stream(body, writer) if body["stream"] else self._complete(body, writer))
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _stream(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        async for event in self.events(body):
            writer.write(event)
            await writer.drain()

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        usage = {"prompt_tokens": _tokens(body), "completion_tokens": body["max_tokens"]}
        content = json.dumps({"choices": [{"message": {"content": "0 "}, "finish_reason": "length"}], "usage": usage})
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n{content}".encode()
        )
        await writer.drain()

    async def events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """The events of an answer, each at its time."""
        prompt = body["messages"][0]["content"]
        tokens = _tokens(body)
        beginning = " ".join(prompt.split()[:20])
        new = 0 if beginning in self._seen else tokens
        self._seen.add(beginning)
        self._prefilling += 1
        await asyncio.sleep(self.prompt_token * new)
        self._prefilling -= 1
        for number in range(0, body["max_tokens"], self.in_a_chunk):
            yield _event({"choices": [{"delta": {"content": f"{number} "}, "finish_reason": None}]})
            await asyncio.sleep(self.disturbed_token if self._prefilling else self.token)
        yield _event({"choices": [{"delta": {}, "finish_reason": "length"}]})
        if self.has_usage:
            yield _event({"choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": body["max_tokens"]}})
        yield b"data: [DONE]\n\n"

    async def decide(self, text: str, num_questions: int) -> None:
        """Take the time of a text and of its questions."""
        await asyncio.sleep(self.prompt_token * (TOKENS_PER_WORD * len(text.split()) + num_questions))


def _tokens(body: dict[str, Any]) -> int:
    """The tokens of a body's prompt."""
    return TEMPLATE_TOKENS + TOKENS_PER_WORD * len(body["messages"][0]["content"].split())


def _event(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\r\n\r\n"


@asynccontextmanager
async def fake_server(**how: Any) -> AsyncIterator[FakeServer]:
    """A fake server on a free port of this event loop."""
    fake = FakeServer(**how)
    server = await asyncio.start_server(fake.answer, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield fake


class InProcess(Server):
    """A fake server that is asked without HTTP; all times are those of the running event loop."""

    def __init__(self, fake: FakeServer) -> None:
        clock = asyncio.get_running_loop().time
        super().__init__("A", "http://in-process", api_key=None, model="fake", body={}, clock=clock)
        self._fake = fake

    async def record(self, data: bytes, recording: Recording) -> None:
        """Record the fake's events."""
        async for event in self._fake.events(json.loads(data)):
            recording.add(self.clock(), event)

    async def complete(self, data: bytes, path: str = "/v1/chat/completions") -> tuple[int, str, bytes]:
        """Decide questions: the input's tokens are read once, and one token for each question."""
        assert path == "/v1/decisions"
        body = json.loads(data)
        await self._fake.decide(body["input"], len(body["questions"]))
        return 200, "OK", b"{}"
