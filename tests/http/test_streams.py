"""Server-sent events over real sockets: their form, how fast they are produced, and what happens between events."""

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

from genai_server.errors import EngineDied
from genai_server.http.request_state import start_request
from genai_server.http.streams import EventStream
from tests.running_server import body, free_port, wait_until
from tests.server_here import run_here

Events = Callable[[], AsyncGenerator[Any]]


class Source:
    """The state that the events record."""

    def __init__(self) -> None:
        self.closed = 0
        self.progress: tuple[int, int] | None = None

    def close(self) -> None:
        self.closed += 1


@contextmanager
def served(events: Events, **options: Any) -> Iterator[tuple[str, Source]]:
    """A server that answers each request with these events; yields its address and their state."""
    source = Source()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        start_request(scope)
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
    """Everything that a client receives."""
    with served(events, **options) as (url, source):
        text = httpx.get(url, timeout=90).text
        wait_until(lambda: source.closed == 1)
    return text


def test_events_are_json_lines_that_no_proxy_keeps_back_and_words_are_sent_unchanged() -> None:
    async def events() -> AsyncGenerator[Any]:
        yield {"text": 'a\n"b" \x85\u2028\u2029 ü'}
        yield "[DONE]"

    with served(events) as (url, _):
        response = httpx.get(url, timeout=90)
    first, last = response.text.split("\n\n", 1)
    assert last == "data: [DONE]\n\n"
    assert ("\n" in first, r"\u0085\u2028\u2029 ü" in first) == (False, True)
    assert json.loads(first.removeprefix("data: ")) == {"text": 'a\n"b" \x85\u2028\u2029 ü'}
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-store", "no")


def test_named_events_go_by_their_type() -> None:
    async def events() -> AsyncGenerator[Any]:
        yield {"type": "begin", "n": 1}

    assert read(events, named=True) == 'event: begin\ndata: {"type":"begin","n":1}\n\n'


@pytest.mark.parametrize(("error", "message"), [(EngineDied("gone"), "gone"), (ValueError("secret"), "internal error")])
def test_error_is_the_last_event_and_hides_unexpected_ones(error: Exception, message: str) -> None:
    async def events() -> AsyncGenerator[Any]:
        yield {"n": 1}
        raise error

    _, last = read(events).removesuffix("\n\n").split("\n\n")
    assert (message in json.loads(last.removeprefix("data: "))["error"]["message"], "secret" in last) == (True, False)


def test_comments_are_sent_while_no_event_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventStream, "COMMENT_INTERVAL", 0.02)

    commented = threading.Event()

    async def events() -> AsyncGenerator[Any]:
        yield "first"
        while not commented.is_set():  # noqa: ASYNC110 - set by the client's thread
            await asyncio.sleep(0.01)
        yield "last"

    data = []
    with served(events) as (url, _), httpx.stream("GET", url, timeout=90) as response:
        for line in response.iter_lines():
            if line.startswith(": ping"):
                commented.set()
            elif line:
                data.append(line)
    assert commented.is_set()
    assert data == ["data: first", "data: last"]


STREAMS = [
    ("/v1/chat/stream", {}),
    ("/v1/chat/completions", {"stream": True}),
    ("/v1/completions", {"stream": True}),
    ("/v1/responses", {"stream": True}),
    ("/v1/messages", {"stream": True, "max_tokens": 9}),
]


@pytest.mark.parametrize(("path", "fields"), STREAMS, ids=lambda value: value if isinstance(value, str) else "")
def test_comments_report_prompt_progress(
    slow_prompts: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    monkeypatch.setattr(EventStream, "COMMENT_INTERVAL", 0.02)
    text = " " * 40 + "say yes"
    asked = {"/v1/completions": {"prompt": f"{text}\n\x04"}, "/v1/responses": {"input": text}}.get(path, body(text))
    with slow_prompts.stream("POST", path, json={**asked, **fields}) as response:
        lines = list(response.iter_lines())
    progress = [
        tuple(map(int, line[len(": prefill ") :].split("/"))) for line in lines if line.startswith(": prefill ")
    ]
    total = len(text) + 2
    assert len(set(progress)) > 2, lines
    assert progress == sorted(progress)
    assert {of for _, of in progress} == {total}
    assert max(read for read, _ in progress) < total
    first = next(place for place, line in enumerate(lines) if '"yes"' in line or '"y"' in line)
    # One may have been created before the text and sent after it.
    assert sum(line.startswith(": prefill") for line in lines[first:]) <= 1


@pytest.fixture(scope="module")
def slow_prompts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server that reads two tokens of a prompt every 0.05 s."""
    endless = body("delay 0.05; count 1000")
    folder = tmp_path_factory.mktemp("slow")
    with (
        run_here(folder, "--device", "scripted", "--prefill-chunk", "2") as server,
        server.client.stream("POST", "/v1/chat/stream", json=endless) as other,
    ):
        lines = other.iter_lines()
        next(lines)  # next to this stream, each round reads one chunk of a prompt
        yield server.client


def test_slow_reader_delays_only_its_own_events() -> None:
    made = 0
    size, number = 1 << 20, 64

    async def events() -> AsyncGenerator[Any]:
        nonlocal made
        for _ in range(number):
            made += 1
            yield "x" * size

    with served(events) as (url, source), httpx.stream("GET", url, timeout=30) as response:
        wait_until(lambda: made > 1)
        stood = -1
        while stood != made:  # the sockets' buffers take some
            stood = made
            threading.Event().wait(0.3)
        assert made < number
        assert source.closed == 0
        assert len(response.read()) == number * len(f"data: {'x' * size}\n\n")


def test_disconnected_client_ends_the_events() -> None:
    async def waits() -> AsyncGenerator[Any]:
        yield "x"
        await asyncio.Event().wait()

    with served(waits) as (url, source):
        with httpx.stream("GET", url, timeout=30) as response:
            lines = response.iter_lines()  # kept: without a reader httpx closes the connection
            assert next(lines) == "data: x"
            assert source.closed == 0
        wait_until(lambda: source.closed == 1)
