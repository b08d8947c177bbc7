"""Server-sent events over real sockets: what is sent, how fast it is made, and what happens between events."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from genai_server.api.generation.sse import EventStream
from genai_server.errors import EngineDied
from tests.running_server import body, free_port, wait_until
from tests.server_here import run_here

Events = Callable[[], AsyncGenerator[Any]]


class Source:
    """What the events tell of."""

    def __init__(self) -> None:
        self.closed = 0
        self.progress: tuple[int, int] | None = None

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
    async def events() -> AsyncGenerator[Any]:
        yield {"text": 'a\n"b" \x85\u2028\u2029 ü'}
        yield "[DONE]"

    first, last = read(events).split("\n\n", 1)
    assert last == "data: [DONE]\n\n"
    assert "\n" not in first
    assert r"\u0085\u2028\u2029 ü" in first
    assert json.loads(first.removeprefix("data: ")) == {"text": 'a\n"b" \x85\u2028\u2029 ü'}


def test_named_events_go_by_their_type() -> None:
    async def events() -> AsyncGenerator[Any]:
        yield {"type": "begin", "n": 1}

    assert read(events, named=True) == 'event: begin\ndata: {"type":"begin","n":1}\n\n'


def test_an_error_is_the_last_event_and_an_unexpected_one_says_nothing_of_itself() -> None:
    async def dies() -> AsyncGenerator[Any]:
        yield {"n": 1}
        raise EngineDied("gone")

    async def breaks() -> AsyncGenerator[Any]:
        yield {"n": 1}
        raise ValueError("secret")

    _, died = read(dies).removesuffix("\n\n").split("\n\n")
    assert json.loads(died.removeprefix("data: "))["error"]["message"] == "gone"
    _, broken = read(breaks).removesuffix("\n\n").split("\n\n")
    assert "internal error" in broken
    assert "secret" not in broken


def test_no_proxy_keeps_the_events_back() -> None:
    async def events() -> AsyncGenerator[Any]:
        yield "x"

    with served(events) as (url, _):
        headers = httpx.get(url).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"


def test_comments_come_while_no_event_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventStream, "DEFAULT_PING_INTERVAL", 0.02)

    async def events() -> AsyncGenerator[Any]:
        yield "first"
        await asyncio.sleep(0.5)
        yield "last"

    sent = read(events).removesuffix("\n\n").split("\n\n")
    comments = [line for line in sent if line.startswith(": ping")]
    assert comments
    assert [line for line in sent if line not in comments] == ["data: first", "data: last"]


STREAMS = [
    ("/v1/chat/stream", {}),
    ("/v1/chat/completions", {"stream": True}),
    ("/v1/completions", {"stream": True}),
    ("/v1/responses", {"stream": True}),
    ("/v1/messages", {"stream": True, "max_tokens": 9}),
]


@pytest.mark.parametrize(("path", "fields"), STREAMS, ids=lambda value: value if isinstance(value, str) else "")
def test_comments_say_how_far_a_prompt_is_while_it_is_read(
    slow_prompts: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    monkeypatch.setattr(EventStream, "DEFAULT_PING_INTERVAL", 0.02)
    text = " " * 40 + "say yes"
    asked = {"/v1/completions": {"prompt": f"{text}\n\x04"}, "/v1/responses": {"input": text}}.get(path, body(text))
    with slow_prompts.stream("POST", path, json={**asked, **fields}) as response:
        lines = list(response.iter_lines())
    told = [tuple(map(int, line[len(": prefill ") :].split("/"))) for line in lines if line.startswith(": prefill ")]
    total = len(text) + 2
    assert len(set(told)) > 2, lines
    assert told == sorted(told)
    assert {of for _, of in told} == {total}
    assert max(read for read, _ in told) < total
    first = next(place for place, line in enumerate(lines) if '"yes"' in line or '"y"' in line)
    # One may have been made before the text and sent after it.
    assert sum(line.startswith(": prefill") for line in lines[first:]) <= 1


@pytest.fixture(scope="module")
def slow_prompts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server that reads two tokens of a prompt in each 0.05 s."""
    endless = body("delay 0.05; count 1000")
    folder = tmp_path_factory.mktemp("slow")
    with (
        run_here(folder, "--device", "scripted", "--prefill-chunk", "2") as server,
        server.client.stream("POST", "/v1/chat/stream", json=endless) as other,
    ):
        lines = other.iter_lines()
        next(lines)  # beside it, one piece of a prompt is read in each round
        yield server.client


def test_a_reader_that_stands_still_holds_up_its_own_events_and_gets_them_all() -> None:
    made = 0
    size, number = 1 << 20, 64

    async def events() -> AsyncGenerator[Any]:
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
    async def waits() -> AsyncGenerator[Any]:
        yield "x"
        await asyncio.Event().wait()

    with served(waits) as (url, source):
        with httpx.stream("GET", url) as response:
            lines = response.iter_lines()  # kept: without a reader httpx hangs up
            assert next(lines) == "data: x"
            assert source.closed == 0
        wait_until(lambda: source.closed == 1)
