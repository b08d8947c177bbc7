"""The drain alone; test_shutdown.py covers what clients and operators see of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from genai_server.errors import ServerDraining
from genai_server.http.middleware.drain import Drain, Drained
from genai_server.http.middleware.request_lifetime import RequestLifetime


class Client:
    """One request to the middleware, and the messages of its response."""

    def __init__(self, drain: Drain, app: Callable[..., Awaitable[None]]) -> None:
        self.sent: list[dict[str, Any]] = []
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/x", "headers": []}
        counted = RequestLifetime(Drained(app, drain), drain=drain)
        self.task = asyncio.ensure_future(counted(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


async def endless(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(limited())


def test_idle_drain_ends_at_once_and_stays_closed() -> None:
    async def test() -> None:
        drain = Drain(600)
        drain.require_open()
        await drain.run()
        assert drain.num_cut_off == 0
        with pytest.raises(ServerDraining):
            drain.require_open()

    run(test)


def test_drain_ends_with_the_last_request() -> None:
    async def test() -> None:
        drain, goes_on = Drain(600), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await goes_on.wait()

        client = Client(drain, app)
        await asyncio.sleep(0)
        draining = asyncio.ensure_future(drain.run())
        await asyncio.sleep(0)
        assert drain.is_draining
        goes_on.set()
        await draining
        assert drain.num_cut_off == 0
        await client.task

    run(test)


@pytest.mark.parametrize("hurried", [False, True])
def test_request_cut_off_without_an_answer_gets_a_503(hurried: bool) -> None:
    async def test() -> None:
        drain = Drain(600 if hurried else 0)
        client = Client(drain, endless)
        await asyncio.sleep(0)
        draining = asyncio.ensure_future(drain.run())
        if hurried:
            await asyncio.sleep(0)
            drain.hurry()
        await draining
        assert drain.num_cut_off == 1
        await client.task
        assert client.sent[0]["status"] == 503
        assert (b"connection", b"close") in client.sent[0]["headers"]
        assert b"server_stopping" in client.sent[1]["body"]

    run(test)


def test_cancelled_request_gets_no_answer() -> None:
    async def test() -> None:
        client = Client(Drain(600), endless)
        await asyncio.sleep(0)
        client.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client.task
        assert client.sent == []

    run(test)
