"""Many open connections, and whether the server's health checks still respond."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil

from genai_server.tools.bench.target import HealthProbe

from .answers import WrongAnswer, read_answer
from .asked import COUNTRIES
from .http import BrokenAnswer, Exchange, ask_json
from .server import HOST, Server

HOLDERS = 16
_PROBE_SECONDS = 0.05
_SECONDS_TO_ANSWER = 240.0
_SECONDS_TO_ACCEPT = 20.0
_HEADERS = {"content-type": "application/json", "connection": "keep-alive"}


@dataclass
class Seen:
    """How the requests ended, how many sockets the server had at most, and the seconds that /healthz took."""

    ends: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    max_open: int = 0
    health: list[float] = field(default_factory=list)
    health_failed: int = 0
    seconds_to_open: float = 0.0
    seconds_to_answer: float = 0.0


class Connections:
    """`number` connections, `rate` new ones a second, each with one request.

    Other connections, which do not count, keep the batch busy with long answers, so that these wait until all are open.
    """

    def __init__(self, server: Server, number: int, rate: float) -> None:
        self.seen = Seen()
        self._server = server
        self._number = number
        self._rate = rate
        self._sent, self._opened, self._answered = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._to_send = self._left = number

    async def run(self) -> Seen:
        """Open all, and wait for all answers."""
        probe = HealthProbe(f"http://{HOST}:{self._server.port}", "/healthz", _PROBE_SECONDS)
        async with probe, asyncio.TaskGroup() as group:
            for _ in range(HOLDERS):
                group.create_task(self._hold())
            while await asyncio.to_thread(self._num_running) < HOLDERS:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.1)
            started = time.monotonic()
            for index in range(self._number):
                await asyncio.sleep(max(0.0, started + index / self._rate - time.monotonic()))
                group.create_task(self._connect(index))
            await asyncio.wait_for(self._sent.wait(), _SECONDS_TO_ANSWER)
            self.seen.seconds_to_open = time.monotonic() - started
            await self._count_open()
            self._opened.set()
            await asyncio.wait_for(self._answered.wait(), _SECONDS_TO_ANSWER)
            self.seen.seconds_to_answer = time.monotonic() - started
        await probe.close()
        self.seen.health, self.seen.health_failed = probe.samples, probe.failed
        return self.seen

    def _num_running(self) -> int:
        return sum(engine["running"] for engine in self._server.engines())

    async def _hold(self) -> None:
        """Keep a slot of the batch until all connections are open."""
        body = {"messages": _asked("Hello!"), "ignore_eos": True, "max_tokens": 1900, "priority": -1000}
        opened = asyncio.create_task(self._opened.wait())
        while not self._opened.is_set():
            asking = asyncio.create_task(ask_json(self._server.port, "/v1/chat", body))
            await asyncio.wait({asking, opened}, return_when=asyncio.FIRST_COMPLETED)
            asking.cancel()

    async def _connect(self, index: int) -> None:
        """Send a request, read the answer, and stay connected until the server disconnects."""
        country = COUNTRIES[index % len(COUNTRIES)]
        asked = {"messages": _asked(f"What is the capital of {country}?"), "max_tokens": 8}
        body = json.dumps(asked).encode()
        sent = False
        try:
            async with Exchange(self._server.port) as exchange:
                await exchange.send("POST", "/v1/chat/stream", body, _HEADERS)
                sent = True
                self._one_sent()
                response = await exchange.response()
                async for piece in exchange.pieces():
                    response.body += piece
                answer = read_answer(response.status, bytes(response.body), streamed=True)
                self.seen.ends[answer.end if answer.end == "finished" else f"{answer.end}: {answer.reason}"] += 1
                if answer.end == "error":
                    self.seen.broken.append(f"connection {index}: {answer}")
                self._one_less()
                await self._answered.wait()
        except (BrokenAnswer, WrongAnswer, OSError) as error:
            self.seen.ends["no answer"] += 1
            self.seen.broken.append(f"connection {index}: {type(error).__name__}: {error}")
            if not sent:
                self._one_sent()
            self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if not self._left:
            self._answered.set()

    def _one_sent(self) -> None:
        self._to_send -= 1
        if not self._to_send:
            self._sent.set()

    async def _count_open(self) -> None:
        """Count the open connections among the server's sockets. It may still have to accept some."""
        process = psutil.Process(self._server.pid)
        deadline = time.monotonic() + _SECONDS_TO_ACCEPT
        while self.seen.max_open < self._number and time.monotonic() < deadline:
            sockets = await asyncio.to_thread(process.net_connections, "tcp")
            now = sum(sock.status == psutil.CONN_ESTABLISHED for sock in sockets)
            self.seen.max_open = max(self.seen.max_open, now)


def _asked(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]
