"""Server-sent events over real sockets: what is sent, how fast it is made, and what happens between events."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from genai_server.api.sse import EventStream
from genai_server.errors import EngineDied
from tests.running_server import free_port, wait_until

Events = Callable[[], AsyncIterator[Any]]


class Source:
    """What the events tell of."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@contextmanager
def served(events: Events, **options: Any) -> Iterator[tuple[str, Source]]:
    """A server that answers each request with these events; its address and what they tell of."""
    source = Source()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await EventStream(source, events(), **options)(scope, receive, send)

    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{port}", source
    finally:
        server.should_exit = True
        thread.join()


def read(events: Events, **options: Any) -> str:
    """All that a client gets."""
    with served(events, **options) as (url, source):
        text = httpx.get(url).text
        wait_until(lambda: source.closed == 1)
    return text


def test_each_event_is_one_line_of_json_and_a_word_goes_as_it_is() -> None:
    async def events() -> AsyncIterator[Any]:
        yield {"text": 'a\n"b" \x85\u2028\u2029 ü'}
        yield "[DONE]"

    first, last = read(events).split("\n\n", 1)
    assert last == "data: [DONE]\n\n"
    assert "\n" not in first
    assert r"\u0085\u2028\u2029 ü" in first
    assert json.loads(first.removeprefix("data: ")) == {"text": 'a\n"b" \x85\u2028\u2029 ü'}


def test_named_events_go_by_their_type() -> None:
    async def events() -> AsyncIterator[Any]:
        yield {"type": "begin", "n": 1}

    assert read(events, named=True) == 'event: begin\ndata: {"type":"begin","n":1}\n\n'


def test_an_error_is_the_last_event_and_an_unexpected_one_says_nothing_of_itself() -> None:
    async def dies() -> AsyncIterator[Any]:
        yield {"n": 1}
        raise EngineDied("gone")

    async def breaks() -> AsyncIterator[Any]:
        yield {"n": 1}
        raise ValueError("secret")

    _, died = read(dies).removesuffix("\n\n").split("\n\n")
    assert json.loads(died.removeprefix("data: "))["error"]["message"] == "gone"
    _, broken = read(breaks).removesuffix("\n\n").split("\n\n")
    assert "internal error" in broken
    assert "secret" not in broken


def test_no_proxy_keeps_the_events_back() -> None:
    async def events() -> AsyncIterator[Any]:
        yield "x"

    with served(events) as (url, _):
        headers = httpx.get(url).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"


def test_comments_come_while_no_event_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventStream, "DEFAULT_PING_INTERVAL", 0.02)

    async def events() -> AsyncIterator[Any]:
        yield "first"
        await asyncio.sleep(0.5)
        yield "last"

    sent = read(events).removesuffix("\n\n").split("\n\n")
    comments = [line for line in sent if line.startswith(": ping")]
    assert comments
    assert [line for line in sent if line not in comments] == ["data: first", "data: last"]


def test_a_reader_that_stands_still_holds_up_its_own_events_and_gets_them_all() -> None:
    made = 0
    size, number = 1 << 20, 64

    async def events() -> AsyncIterator[Any]:
        nonlocal made
        for _ in range(number):
            made += 1
            yield "x" * size

    with served(events) as (url, source), httpx.stream("GET", url) as response:
        wait_until(lambda: made > 1)
        stood = -1
        while stood != made:  # the sockets' buffers take some
            stood = made
            threading.Event().wait(0.3)
        assert made < number
        assert source.closed == 0
        assert len(response.read()) == number * len(f"data: {'x' * size}\n\n")


def test_a_client_that_leaves_ends_the_events_wherever_they_are() -> None:
    async def waits() -> AsyncIterator[Any]:
        yield "x"
        await asyncio.Event().wait()

    with served(waits) as (url, source):
        with httpx.stream("GET", url) as response:
            lines = response.iter_lines()  # kept: without a reader httpx hangs up
            assert next(lines) == "data: x"
            assert source.closed == 0
        wait_until(lambda: source.closed == 1)
