"""A deadline ends a request also while it is prepared, in the form that it has in the engine's queue."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from genai_server.text.codec import TextCodec
from genai_server.workers.process import WorkerProcess
from tests.running_server import RunningServer, body

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "title": "held up"}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}}
_TEXT = {"format": {"type": "json_schema", "name": "x", "schema": _SCHEMA}}
_TOOL = {"name": "f", "input_schema": _SCHEMA}
_SECONDS = 0.05


@pytest.fixture
def client(own_scripted: RunningServer) -> httpx.Client:
    return own_scripted.client


@pytest.fixture
def held_grammars(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Grammars are not checked before the test has ended; the event is set once one is to be."""
    is_asked, ends = threading.Event(), threading.Event()

    def ask(process: WorkerProcess, question: Mapping[str, Any], data: bytes, timeout: float) -> dict[str, Any]:
        is_asked.set()
        assert ends.wait(60)
        return {"error": None}

    monkeypatch.setattr(WorkerProcess, "ask", ask)
    yield is_asked
    ends.set()


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [
        ("/v1/chat/completions", body("say hi", response_format=_FORMAT), '"genai_finish_reason":"timeout"'),
        (
            "/v1/completions",
            {"prompt": "say hi", "structured_outputs": {"json": _SCHEMA}},
            '"genai_finish_reason":"timeout"',
        ),
        ("/v1/responses", {"input": "say hi", "text": _TEXT}, '"status":"incomplete"'),
        ("/v1/messages", body("say hi", tools=[_TOOL], max_tokens=9), '"stop_reason":"'),
        ("/api/chat", body("say hi", format=_SCHEMA), '"done_reason":"'),
    ],
)
def test_deadline_ends_a_request_whose_grammar_is_checked(
    client: httpx.Client,
    held_grammars: threading.Event,
    path: str,
    fields: dict[str, Any],
    reason: str,
    is_streamed: bool,
) -> None:
    asked = {**fields, "stream": is_streamed}
    response = client.post(path, json=asked, headers={"x-request-timeout": str(_SECONDS)})
    assert response.status_code == 200, response.text
    assert reason in response.text.replace(" ", "")


def test_it_has_the_form_of_a_deadline_in_the_queue(client: httpx.Client, held_grammars: threading.Event) -> None:
    queued = client.post("/v1/chat/completions", json=body("count 100000; delay 0.01", timeout=_SECONDS)).json()
    held = client.post("/v1/chat/completions", json=body("say hi", response_format=_FORMAT, timeout=_SECONDS)).json()
    assert queued["choices"][0]["genai_finish_reason"] == "timeout"
    queued["choices"][0]["message"]["content"] = ""
    assert held["choices"] == queued["choices"]
    assert held.keys() == queued.keys()
    assert held["usage"]["completion_tokens"] == 0


def test_each_answer_of_a_request_ends(client: httpx.Client, held_grammars: threading.Event) -> None:
    fields = {"prompt": ["one", "two"], "n": 2, "echo": True, "structured_outputs": {"json": _SCHEMA}}
    choices = client.post("/v1/completions", json={**fields, "timeout": _SECONDS}).json()["choices"]
    assert [choice["text"] for choice in choices] == ["one", "one", "two", "two"]
    assert {choice["genai_finish_reason"] for choice in choices} == {"timeout"}


def test_deadline_ends_a_request_whose_prompt_is_encoded(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(TextCodec, "encode_chat", endless)
    answer = client.post("/v1/chat/completions", json=body("say hi", timeout=_SECONDS)).json()
    assert answer["choices"][0]["genai_finish_reason"] == "timeout"
    counted = client.post(
        "/v1/messages/count_tokens", json=body("say hi"), headers={"x-request-timeout": str(_SECONDS)}
    )
    assert (counted.status_code, counted.json()["error"]["type"]) == (504, "api_error")
    tokens = client.post("/tokenize", json=body("say hi"), headers={"x-request-timeout": str(_SECONDS)})
    assert (tokens.status_code, tokens.json()["error"]["code"]) == (504, "timeout")
