"""The latency of a request is that of its client: from its first byte, whatever it then waits for.

Tests hold up a request at some place, for a time measured by the clock of the server in this process.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from websockets.sync.client import connect as connect_websocket

from genai_server.cli.serve.protocol import GuardedProtocol, GuardedWebSocket
from genai_server.generation.catalog import Catalog
from genai_server.grammar_checker.checker import GrammarChecker
from genai_server.timing import request_clock
from tests.raw_http import answers, connect, read_to_end
from tests.running_server import RunningServer, body, wait_until
from tests.scraped import Scraped, scrape
from tests.server_here import module_server

PARTS = ["receive", "load", "queue", "prefill", "prepare", "decode", "deliver"]
HOLD = 0.2
# Each figure is shown with six digits.
ROUNDED = 1e-5


# Two models, of which one may be loaded.
server = module_server("--device", "scripted", GENAI_MODELS="one=/1,two=/2", GENAI_MAX_MODELS="1")


class Holding:
    """Holds up coroutines, and measures how long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self._monkeypatch = monkeypatch

    def before(self, owner: type, name: str) -> None:
        """Hold up each call of this method before it starts."""
        held = getattr(owner, name)

        async def hold(*args: Any, **named: Any) -> Any:
            began = request_clock()
            await asyncio.sleep(HOLD)
            self.seconds += request_clock() - began
            return await held(*args, **named)

        self._monkeypatch.setattr(owner, name, hold)


@pytest.fixture
def holding(monkeypatch: pytest.MonkeyPatch) -> Holding:
    return Holding(monkeypatch)


def loaded(server: RunningServer) -> str:
    """The loaded model."""
    states: dict[str, str] = {entry["id"]: entry["state"] for entry in server.client.get("/v1/models").json()["data"]}
    (name,) = (name for name, state in states.items() if state == "ready")
    return name


def unloaded(server: RunningServer) -> str:
    return {"one": "two", "two": "one"}[loaded(server)]


def completion(server: RunningServer, content: str = "say hi", **fields: Any) -> dict[str, Any]:
    """The metrics of an answer."""
    fields = {"model": loaded(server), "include_metrics": True, **fields}
    response = server.client.post("/v1/chat/completions", json=body(content, **fields))
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()["metrics"]
    return found


def check_sum(metrics: dict[str, Any]) -> dict[str, float]:
    """The breakdown, after checking that its parts sum to the total and, up to the first token, to the TTFT."""
    breakdown: dict[str, float] = metrics["breakdown"]
    assert sorted(breakdown) == sorted(PARTS)
    assert min(breakdown.values()) >= 0
    assert sum(breakdown.values()) == pytest.approx(metrics["total_latency"], rel=ROUNDED)
    before = sum(breakdown[name] for name in PARTS[:5])
    assert before == pytest.approx(metrics["ttft"], rel=ROUNDED)
    return breakdown


def test_waiting_for_a_model_counts_as_loading(server: RunningServer, holding: Holding) -> None:
    holding.before(Catalog, "command")
    name = unloaded(server)
    before = scrape(server)
    metrics = completion(server, model=name)
    breakdown = check_sum(metrics)
    assert metrics["total_latency"] >= metrics["ttft"] >= breakdown["load"] >= holding.seconds > 0
    tokens = metrics["input_tokens"] + metrics["output_tokens"]
    assert metrics["tokens_per_second"] == pytest.approx(tokens / metrics["total_latency"], rel=ROUNDED)
    for metric in ("time_to_first_token", "e2e_request_latency", "request_load_time"):
        assert added(server, before, f"{metric}_seconds_sum", name) >= holding.seconds


def test_ollamas_durations_count_the_load(server: RunningServer, holding: Holding) -> None:
    holding.before(Catalog, "command")
    fields = {"model": unloaded(server), "stream": False, "prompt": "say hi"}
    began = request_clock()
    found = server.client.post("/api/generate", json=fields).json()
    waited = request_clock() - began
    parts = [found[f"{name}_duration"] / 1e9 for name in ("load", "prompt_eval", "eval")]
    total = found["total_duration"] / 1e9
    assert parts[0] >= holding.seconds > 0
    assert sum(parts) <= total <= waited


def test_a_background_response_counts_from_its_request(server: RunningServer, holding: Holding) -> None:
    holding.before(GrammarChecker, "complaint")
    text = {"format": {"type": "json_schema", **schema("background")["json_schema"]}}
    fields = {"input": "say 1", "text": text, "background": True, "include_metrics": True, "model": loaded(server)}
    begun = server.client.post("/v1/responses", json=fields).json()
    found: dict[str, Any] = {}

    def is_completed() -> bool:
        found.update(server.client.get(f"/v1/responses/{begun['id']}").json())
        return bool(found["status"] == "completed")

    wait_until(is_completed)
    assert check_sum(found["metrics"])["prepare"] >= holding.seconds > 0


def test_slow_tokens_count_as_decoding(server: RunningServer) -> None:
    metrics = completion(server, "count 3; delay 0.02")
    assert check_sum(metrics)["decode"] >= 0.02 * (metrics["output_tokens"] - 1)


@pytest.mark.parametrize("of_body", [False, True])
def test_latency_begins_with_the_first_byte(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, of_body: bool
) -> None:
    begun = noted(monkeypatch, GuardedProtocol, "on_message_begin")
    head, content = request(server, "expect: 100-continue\r\n" if of_body else "")
    held_at = len(head) if of_body else 20
    with connect(server) as sock:
        sock.sendall(head[:held_at])
        assert begun.wait(90)
        if of_body:
            assert sock.recv(1024).startswith(b"HTTP/1.1 100 ")  # the server waits for the body
        held = pause()
        sock.sendall(head[held_at:] + content)
        metrics = metrics_of(sock)
    assert check_sum(metrics)["receive"] >= held


def test_the_age_of_a_connection_does_not_count(server: RunningServer) -> None:
    completion(server)
    time.sleep(HOLD)  # on the same connection, which is kept alive
    began = request_clock()
    metrics = completion(server)
    assert metrics["total_latency"] <= request_clock() - began


@pytest.mark.parametrize("rests", [False, True])
def test_a_websocket_message_counts_from_its_start(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, rests: bool
) -> None:
    fields = {"type": "response.create", "model": loaded(server), "input": "say hi", "include_metrics": True}
    text = json.dumps(fields)
    frames = noted(monkeypatch, GuardedWebSocket, "handle_text")
    held = 0.0

    def fragments() -> Iterator[str]:
        nonlocal held
        yield text[:10]
        assert frames.wait(90)
        held = pause()
        yield text[10:]

    with connect_websocket(f"ws{server.url.removeprefix('http')}/v1/responses") as connection:
        if rests:
            assert connection.ping().wait(90)
            time.sleep(HOLD)
        began = request_clock()
        connection.send(text if rests else fragments())
        while (event := json.loads(connection.recv(timeout=90)))["type"] != "response.completed":
            pass
    metrics = event["response"]["metrics"]
    assert metrics["total_latency"] <= request_clock() - began
    assert check_sum(metrics)["receive"] >= held


def test_histograms_of_the_parts_add_up_to_the_latency(server: RunningServer) -> None:
    name = loaded(server)
    before = scrape(server)
    completion(server, "count 5; delay 0.005", n=2)
    whole = added(server, before, "e2e_request_latency_seconds_sum", name)
    parts = [added(server, before, f"request_{part}_time_seconds_sum", name) for part in PARTS]
    assert sum(parts) == pytest.approx(whole)
    inference = added(server, before, "request_inference_time_seconds_sum", name)
    assert inference == pytest.approx(parts[PARTS.index("prefill")] + parts[PARTS.index("decode")])


def schema(name: str) -> dict[str, Any]:
    """A response format that no other request has."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": {"type": "integer", "title": name}}}


def pause() -> float:
    """Let time pass; returns the seconds."""
    began = request_clock()
    time.sleep(HOLD)
    return request_clock() - began


def noted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> threading.Event:
    """An event that is set once this method has been called."""
    called = threading.Event()
    method: Callable[..., Any] = getattr(owner, name)

    def note(*args: Any) -> Any:
        found = method(*args)
        called.set()
        return found

    monkeypatch.setattr(owner, name, note)
    return called


def request(server: RunningServer, header: str = "") -> tuple[bytes, bytes]:
    """Head and body of a request on a separate connection."""
    content = json.dumps(body("say hi", model=loaded(server), include_metrics=True)).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{header}"
        f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode(), content


def metrics_of(sock: socket.socket) -> dict[str, Any]:
    (answer,) = answers(read_to_end(sock))
    found: dict[str, Any] = json.loads(answer.body)["metrics"]
    return found


def added(server: RunningServer, before: Scraped, name: str, model: str) -> float:
    """The increase of a sum over a model's answers, once it includes the last request."""
    wait_until(lambda: scrape(server).value(name, model_name=model) > before.value(name, model_name=model))
    return scrape(server).value(name, model_name=model) - before.value(name, model_name=model)
