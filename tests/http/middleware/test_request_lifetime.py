"""The beginning and the end of a request, its id, internal errors, where its time went, and the drain."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from genai_server.apis import models
from genai_server.errors import ServerDraining
from genai_server.http.error_responses import BROWSER_HEADERS
from genai_server.http.middleware.request_lifetime import Drain, DrainMiddleware, RequestLifetime
from genai_server.http.telemetry.request_record import RequestRecord
from tests.apis.admin.test_requests import ENDLESS
from tests.raw_http import answers, connect, read_to_end
from tests.running_server import RunningServer, body, wait_until
from tests.server_here import module_server

here = module_server("--device", "scripted")  # a server in this process, which a test can break


def _times(header: str) -> dict[str, float]:
    return {name: float(value) for name, _, value in (part.strip().partition(";dur=") for part in header.split(","))}


def test_an_answer_in_one_piece_says_where_its_time_went(scripted: RunningServer) -> None:
    answer = scripted.chat("count 3; delay 0.01")
    times = _times(answer.headers["server-timing"])
    *parts, total = times
    assert (parts, total) == (["receive", "load", "prepare", "queue", "prefill", "decode", "deliver"], "total")
    assert times["decode"] >= 10 * (answer.json()["metrics"]["output_tokens"] - 1)
    assert sum(times[part] for part in parts) == pytest.approx(times["total"], abs=0.01)  # three digits each


def test_all_apis_send_server_timing(scripted: RunningServer) -> None:
    for path, fields in (
        ("/v1/chat/completions", body("say a")),
        ("/v1/completions", {"prompt": "say a", "max_tokens": 4}),
        ("/v1/responses", {"input": "say a"}),
        ("/v1/messages", {"max_tokens": 4, "model": "demo", **body("say a")}),
    ):
        answer = scripted.client.post(path, json=fields)
        assert answer.status_code == 200, answer.text
        assert "server-timing" in answer.headers, path


def test_server_timing_omits_what_is_unknown_at_the_headers(scripted: RunningServer) -> None:
    with scripted.stream("say a") as events:
        assert "server-timing" not in events.response.headers
        list(events)
    assert "server-timing" not in scripted.chat("say a", strem=True).headers


async def _responding(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})


def _recorded(app: Any, fail: Callable[[RequestRecord], None] = lambda _: None, raises: Any = ()) -> tuple[Any, Any]:
    """The record of a request that this app answers or raises an exception for, and the messages of its response."""
    recorded: list[RequestRecord] = []
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("no message is read")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"x-request-id", b"r1")]}
    with pytest.raises(raises) if raises else nullcontext():
        asyncio.run(RequestLifetime(app, "model", lambda: 2.0, [fail, recorded.append])(scope, receive, send))
    (record,) = recorded
    return record, [message["status"] for message in sent if "status" in message]


def test_failing_recorder_affects_neither_answer_nor_others() -> None:
    def fail(record: RequestRecord) -> None:
        raise OSError("no space left")

    record, statuses = _recorded(_responding, fail)
    assert (record.request_id, record.status, record.seconds, statuses) == ("r1", 204, 0.0, [204])


@pytest.mark.parametrize(
    ("error", "has_begun", "is_raised", "status"),
    [(ValueError, False, False, 500), (asyncio.CancelledError, False, True, 500), (ValueError, True, True, 204)],
)
def test_an_exception_is_recorded_and_raised_unless_it_can_be_answered(
    error: type[BaseException], has_begun: bool, is_raised: bool, status: int
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if has_begun:
            await _responding(scope, receive, send)
        raise error

    record, statuses = _recorded(app, raises=error if is_raised else ())
    assert (record.status, statuses) == (status, [] if error is asyncio.CancelledError else [status])


@pytest.mark.parametrize(
    ("path", "builder", "fields"),
    [
        ("/v1/chat", "own_chat.ChatBuilder", body(ENDLESS)),
        ("/v1/chat/completions", "chat_completions.ChatCompletionBuilder", body(ENDLESS)),
        ("/v1/chat/completions", "chat_completions.ChatCompletionBuilder", body(ENDLESS, stream=True)),
        ("/v1/completions", "completions.CompletionBuilder", {"prompt": f"{ENDLESS}\x04", "max_tokens": 900}),
        ("/v1/responses", "responses.routes.ResponseBuilder", {"input": ENDLESS}),
        ("/v1/messages", "messages.routes.MessageBuilder", {"model": "demo", **body(ENDLESS, max_tokens=900)}),
    ],
)
def test_an_answer_ends_if_its_response_cannot_be_built(
    here: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str, builder: str, fields: dict[str, Any]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(f"genai_server.apis.{builder}", broken)
    with suppress(httpx.ReadError):  # the connection ends after the 500, or before it
        assert httpx.post(f"{here.url}{path}", json=fields, timeout=90).status_code == 500
    wait_until(lambda: here.idle("scripted"))


class Client:
    """One request to the middleware, and the messages of its response."""

    def __init__(self, drain: Drain, app: Callable[..., Awaitable[None]]) -> None:
        self.sent: list[dict[str, Any]] = []
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/x", "headers": []}
        counted = RequestLifetime(DrainMiddleware(app, drain), drain=drain)
        self.task = asyncio.ensure_future(counted(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


async def endless(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.anyio
async def test_idle_drain_ends_at_once_and_stays_closed() -> None:
    drain = Drain(600)
    drain.require_open()
    await drain.run()
    assert drain.num_cut_off == 0
    with pytest.raises(ServerDraining):
        drain.require_open()


@pytest.mark.anyio
async def test_drain_ends_with_the_last_request() -> None:
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


@pytest.mark.anyio
@pytest.mark.parametrize("hurried", [False, True])
async def test_request_cut_off_without_an_answer_gets_a_503(hurried: bool) -> None:
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


@pytest.mark.anyio
async def test_cancelled_request_gets_no_answer() -> None:
    client = Client(Drain(600), endless)
    await asyncio.sleep(0)
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.task
    assert client.sent == []


@pytest.mark.parametrize("given", ["my-id.1_x", "a" * 65, "a b", "../x", "é".encode().decode("latin-1"), ""])
def test_a_plain_request_id_of_the_client_is_kept_and_any_other_replaced(scripted: RunningServer, given: str) -> None:
    response = scripted.client.post("/v1/chat", json=body("say x"), headers={b"x-request-id": given.encode("latin-1")})
    kept = response.headers["x-request-id"]
    assert kept == given if given == "my-id.1_x" else kept.startswith("req-")
    assert response.json()["id"].startswith("req-")  # an answer's own, because clients may repeat theirs


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/openapi.json", "/nowhere"])
def test_every_response_has_a_request_id_and_restricts_browsers(scripted: RunningServer, path: str) -> None:
    headers = scripted.client.get(path).headers
    assert headers["x-request-id"].startswith("req-")
    assert BROWSER_HEADERS.items() <= headers.items()
    assert (headers["cache-control"], headers["content-security-policy"]) == ("no-store", "frame-ancestors 'none'")


def test_foreign_web_page_may_not_read_answers(scripted: RunningServer) -> None:
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in scripted.client.options("/v1/chat", headers=asked).headers
    assert "access-control-allow-origin" not in scripted.client.get("/healthz", headers=asked).headers


NEXT = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def test_internal_error_is_a_500_that_is_logged_and_the_connection_continues(
    here: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("swordfish")

    monkeypatch.setattr(models, "model_entry", broken)
    with connect(here) as sock:
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-request-id: mine\r\n\r\n" + NEXT)
        error, health = answers(read_to_end(sock))
    assert (error.status, health.status) == (500, 200)
    assert (b"swordfish" in error.body, b"server_error" in error.body) == (False, True)
    expected = {"x-request-id": ["mine"], **{name: [value] for name, value in BROWSER_HEADERS.items()}}
    assert expected.items() <= error.headers.items()
    logged = [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
    assert [entry.getMessage() for entry in logged] == ["request mine met an internal error"]
    assert logged[0].exc_info is not None
