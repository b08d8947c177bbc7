"""The beginning and the end of a request, its id, internal errors, where its time went, and the drain."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
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
from tests.server_here import run_here


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server in this process, which a test can break."""
    with run_here(tmp_path_factory.mktemp("here"), "--device", "scripted") as server:
        yield server


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


def test_failing_recorder_affects_neither_answer_nor_others() -> None:
    recorded: list[RequestRecord] = []

    def fail(record: RequestRecord) -> None:
        raise OSError("no space left")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("no message is read")

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"x-request-id", b"r1")]}
    asyncio.run(RequestLifetime(app, "model", lambda: 2.0, [fail, recorded.append])(scope, receive, send))
    assert [message["status"] for message in sent] == [204]
    (record,) = recorded
    assert (record.request_id, record.status, record.seconds) == ("r1", 204, 0.0)


@pytest.mark.parametrize(("error", "is_raised"), [(ValueError, False), (asyncio.CancelledError, True)])
def test_an_exception_without_a_response_is_recorded_as_500(error: type[BaseException], is_raised: bool) -> None:
    reported: list[RequestRecord] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    async def nothing(*_: Any) -> Any:
        return None

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    with pytest.raises(error) if is_raised else nullcontext():
        asyncio.run(RequestLifetime(app, observers=[reported.append])(scope, nothing, nothing))
    assert [record.status for record in reported] == [500]


def test_an_exception_after_the_start_of_a_response_is_raised() -> None:
    reported: list[RequestRecord] = []
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError

    async def receive() -> Message:
        raise AssertionError("the body is not read")

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    with pytest.raises(ValueError):
        asyncio.run(RequestLifetime(app, observers=[reported.append])(scope, receive, send))
    assert ([record.status for record in reported], len(sent)) == ([200], 1)


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


def test_a_plain_request_id_of_the_client_is_kept(scripted: RunningServer) -> None:
    response = scripted.client.post("/v1/chat", json=body("say x"), headers={"x-request-id": "my-id.1_x"})
    assert response.headers["x-request-id"] == "my-id.1_x"
    assert response.json()["id"].startswith("req-")  # an answer's own, because clients may repeat theirs


@pytest.mark.parametrize("given", ["a" * 65, "a b", "../x", "é".encode().decode("latin-1"), ""])
def test_any_other_request_id_is_replaced(scripted: RunningServer, given: str) -> None:
    response = scripted.client.get("/healthz", headers={b"x-request-id": given.encode("latin-1")})
    assert response.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/nowhere"])
def test_every_response_has_a_request_id(scripted: RunningServer, path: str) -> None:
    assert scripted.client.get(path).headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize("path", ["/healthz", "/openapi.json", "/nowhere"])
def test_every_response_restricts_browsers(scripted: RunningServer, path: str) -> None:
    headers = scripted.client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["content-security-policy"] == "frame-ancestors 'none'"


def test_foreign_web_page_may_not_read_answers(scripted: RunningServer) -> None:
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in scripted.client.options("/v1/chat", headers=asked).headers
    assert "access-control-allow-origin" not in scripted.client.get("/healthz", headers=asked).headers


NEXT = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


@pytest.fixture
def _broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("swordfish")

    monkeypatch.setattr(models, "model_entry", broken)


@pytest.mark.usefixtures("_broken")
def test_internal_error_is_a_500_and_the_connection_continues(here: RunningServer) -> None:
    with connect(here) as sock:
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-request-id: mine\r\n\r\n" + NEXT)
        error, health = answers(read_to_end(sock))
    assert (error.status, health.status) == (500, 200)
    assert b"swordfish" not in error.body
    assert {"x-request-id": ["mine"], **{name: [value] for name, value in BROWSER_HEADERS.items()}}.items() <= (
        error.headers.items()
    )


@pytest.mark.usefixtures("_broken")
def test_an_internal_error_is_logged_once_with_its_place(here: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    response = here.client.get("/v1/models")
    assert response.json()["error"]["code"] == "server_error"
    logged = [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
    assert [entry.getMessage() for entry in logged] == [
        f"request {response.headers['x-request-id']} met an internal error"
    ]
    assert logged[0].exc_info is not None
