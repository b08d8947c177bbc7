"""Requests of batches are sent again while the server cannot take them, and only then."""

import asyncio
import json

import pytest
from starlette.types import Receive, Scope, Send

from genai_server.apis.batches import running
from genai_server.apis.batches.running import Answering, Stop
from genai_server.batch_files import BatchLine
from genai_server.http.request_state import OnBehalf, receipt_of, start_request

pytestmark = pytest.mark.anyio
LINE = BatchLine(1, "a", "/v1/completions", None, b'{"prompt": "x"}')
ALICE = OnBehalf("alice", 60)


class App:
    """Answers with these statuses, one after another, and error codes."""

    def __init__(self, *answers: tuple[int, str | None]) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []
        self.scopes: list[Scope] = []
        self.num_running = self.most = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append({**scope, "receipt": receipt_of(scope["state"])})
        state = start_request(scope)
        self.num_running += 1
        self.most = max(self.most, self.num_running)
        self.bodies.append((await receive())["body"])
        await asyncio.sleep(0)
        status, state.record.error_code = self.answers.pop(0)
        self.num_running -= 1
        if status == 0:
            raise RuntimeError
        await send({"type": "http.response.start", "status": status, "headers": [(b"retry-after", b"1")]})
        await send({"type": "http.response.body", "body": json.dumps({"status": status}).encode()})


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PAUSE", 0.0)
    monkeypatch.setattr(running, "_MAX_PAUSE", 0.0)
    monkeypatch.setattr(running, "_DEATH_PAUSE", (0.0, 0.0))


def sender(app: App, counted: list[str] | None = None, *, is_draining: bool = False) -> Answering:
    return Answering(app, 2, lambda: is_draining, (list[str]() if counted is None else counted).append)


async def status_of(app: App, counted: list[str] | None = None) -> int:
    """The status of the answer to a request."""
    answered = await sender(app, counted).answer(LINE, ALICE, Stop())
    assert answered is not None
    return answered.status


async def test_the_app_gets_the_request_in_the_background() -> None:
    app = App((200, None))
    answered = await sender(app).answer(LINE, ALICE, Stop())
    assert answered is not None
    assert (answered.status, json.loads(answered.body)) == (200, {"status": 200})
    (scope,) = app.scopes
    assert (scope["method"], scope["path"], scope["client"]) == ("POST", LINE.url, None)
    assert (scope["receipt"].on_behalf, scope["receipt"].is_counted) == (ALICE, True)
    assert app.bodies == [LINE.body]


@pytest.mark.parametrize("code", ["queue_full", "no_engine_ready", "server_draining", "server_stopping", "models_busy"])
async def test_a_server_that_cannot_take_it_is_asked_again(code: str) -> None:
    counted: list[str] = []
    assert await status_of(App((503, code), (503, code), (200, None)), counted) == 200
    assert counted == ["retried"] * 2


@pytest.mark.parametrize(
    "answer", [(400, "invalid_value"), (401, "invalid_api_key"), (500, "runner_failed"), (0, None)]
)
async def test_an_error_of_the_request_is_its_answer(answer: tuple[int, str | None]) -> None:
    assert await status_of(App(answer)) == (answer[0] or 500)


async def test_a_request_that_sees_three_engines_die_fails() -> None:
    app = App((500, "engine_died"), (503, "no_engine_ready"), (500, "engine_hung"), (500, "engine_died"), (200, None))
    assert (await status_of(app), len(app.answers)) == (500, 1)


async def test_no_error_of_a_server_that_ends_is_an_answer() -> None:
    """Models may have gone by then."""
    stop = Stop()
    app = App((404, "model_not_found"), (404, "model_not_found"))
    waiting = asyncio.create_task(sender(app, is_draining=True).answer(LINE, ALICE, stop))
    while app.answers:
        await asyncio.sleep(0)
        if len(app.answers) == 1:
            stop("stopping")
            break
    assert await waiting is None


async def test_a_stopped_batch_ends_its_requests() -> None:
    stop = Stop()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        start_request(scope)
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 499, "headers": []})

    waiting = asyncio.create_task(Answering(wait, 1, lambda: False, list[str]().append).answer(LINE, ALICE, stop))
    await asyncio.sleep(0)
    stop("cancelled")
    stop("expired")
    assert await waiting is None
    assert stop.reason == "cancelled"


async def test_only_so_many_requests_are_in_the_app_at_once() -> None:
    app = App(*[(200, None)] * 10)
    sending = sender(app)
    await asyncio.gather(*(sending.answer(LINE, ALICE, Stop()) for _ in range(10)))
    assert app.most == 2
