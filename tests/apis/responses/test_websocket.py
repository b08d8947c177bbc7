"""Responses over a WebSocket: one turn after another, each with all the features of a request."""

import json
import logging
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import pytest
from openai import OpenAI
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.running_server import RunningServer, wait_until
from tests.server_here import run_here

MODEL = "demo"
ALICE = "alice-0123456789abcdef"
LAST = ("response.completed", "response.incomplete", "response.failed", "error")


@contextmanager
def socket(server: RunningServer, path: str = "/v1/responses", **options: Any) -> Iterator[Connection]:
    with connect(f"ws{server.url.removeprefix('http')}{path}", **options) as connection:
        yield connection


def _send(connection: Connection, **fields: Any) -> None:
    connection.send(json.dumps({"type": "response.create", "model": MODEL, **fields}))


def _read(connection: Connection) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in LAST:
        events.append(json.loads(connection.recv(timeout=90)))
    return events


def _ask(connection: Connection, **fields: Any) -> dict[str, Any]:
    """The last event of a turn."""
    _send(connection, **fields)
    return _read(connection)[-1]


def test_a_turn_has_the_events_of_a_stream(scripted: RunningServer) -> None:
    with socket(scripted) as connection:
        _send(connection, input="say hello")
        events = _read(connection)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    response = events[-1]["response"]
    assert response["output"][0]["content"][0]["text"] == "hello"
    assert scripted.client.get(f"/v1/responses/{response['id']}").json() == response


def test_first_event_names_what_was_left_out_or_converted(scripted: RunningServer) -> None:
    search = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "x"}}
    given = [search, {"role": "user", "content": "say hi", "parsed": 1}]
    with socket(scripted) as connection:
        _send(connection, input=given, client_metadata={"a": "b"})
        first, *others = _read(connection)
        _send(connection, input="say more")
        others += _read(connection)
    assert first["type"] == "response.created"
    assert first["genai_ignored"] == "client_metadata, input[].parsed"
    assert first["genai_converted"] == "input[0] (web_search_call as text)"
    assert [event for event in others if "genai_ignored" in event or "genai_converted" in event] == []


def test_turn_continues_its_unstored_predecessor(scripted: RunningServer) -> None:
    with socket(scripted) as connection:
        first = _ask(connection, input="say one", store=False)["response"]
        second = _ask(connection, input="say two", store=False, previous_response_id=first["id"])["response"]
        assert second["usage"]["input_tokens"] == len("say one\none\nsay two\n") + 1
    assert scripted.client.get(f"/v1/responses/{first['id']}").status_code == 404
    with socket(scripted, "/responses") as connection:
        missing = _ask(connection, input="say x", previous_response_id=second["id"])
        assert (missing["status"], missing["error"]["code"]) == (400, "previous_response_not_found")
        assert _ask(connection, input="say recovered")["type"] == "response.completed"


def test_predecessor_of_a_failed_turn_is_forgotten(scripted: RunningServer) -> None:
    with socket(scripted) as connection:
        first = _ask(connection, input="say one", store=False)["response"]
        orphan = [{"type": "function_call_output", "call_id": "c", "output": "x"}]
        assert _ask(connection, input=orphan, previous_response_id=first["id"])["error"]["param"] == "input"
        again = _ask(connection, input="say x", previous_response_id=first["id"])
        assert again["error"]["code"] == "previous_response_not_found"


# OpenAI's client connects in a way that websockets deprecates since 17.1.
@pytest.mark.filterwarnings(r"ignore:connect\(\) must be used as a context manager:DeprecationWarning")
def test_openais_client_connects(client: OpenAI) -> None:
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, input="say hello")
        (ended,) = [event for event in _until_last(connection) if event.type == "response.completed"]
    assert ended.response.output_text == "hello"


def _until_last(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        if event.type in LAST:
            return


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ("[]", None),
        ("{}", "type"),
        ('{"type": "response.steer"}', "type"),
        ('{"type": "response.create", "background": true, "input": "x"}', "background"),
        ('{"type": "response.create", "stream_options": {"a": 1}, "input": "x"}', "stream_options"),
        ('{"type": "response.create"}', "input"),
        ('{"type": "response.create", "input": "x", "nonsense": 1}', "nonsense"),
        ("[" * 200, None),
    ],
)
def test_invalid_message_is_an_error_on_a_kept_connection(
    scripted: RunningServer, message: str, param: str | None
) -> None:
    with socket(scripted) as connection:
        connection.send(message)
        (error,) = _read(connection)
        assert (error["type"], error["status"], error["error"]["param"]) == ("error", 400, param)
        assert _ask(connection, input="say x")["type"] == "response.completed"


def test_there_is_one_turn_at_a_time(scripted: RunningServer) -> None:
    with socket(scripted) as connection:
        _send(connection, input="delay 0.02; count 1000")
        id = json.loads(connection.recv(timeout=90))["response"]["id"]
        _send(connection, input="say x")
        assert _read(connection)[-1]["error"]["code"] == "response_in_progress"
        scripted.client.post(f"/v1/responses/{id}/cancel").raise_for_status()
        last = _read(connection)[-1]
        ended = last["type"], last["response"]["id"], last["response"]["status"]
        assert ended == ("response.incomplete", id, "cancelled")


def test_disconnected_clients_turn_ends(scripted: RunningServer) -> None:
    with socket(scripted) as connection:
        _send(connection, input="delay 0.02; count 500")
        connection.recv()
    wait_until(lambda: scripted.idle("scripted:0") and scripted.idle("scripted:1"))


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server in this process with a small limit of bodies, and an origin that may connect."""
    options = ("--max-body-bytes", "2000", "--cors-origins", "https://app.example")
    with run_here(tmp_path_factory.mktemp("limited"), "--device", "scripted", *options) as running:
        yield running


def test_abrupt_disconnect_is_not_an_internal_error(limited: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(5):
        with socket(limited) as connection:
            _send(connection, input="delay 0.001; count 500")
            connection.recv()
            # Its last packet is a reset.
            connection.socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            connection.socket.close()
    wait_until(lambda: limited.idle("scripted"))
    logged = [found for found in caplog.records if found.levelno >= logging.WARNING]
    assert [found.message for found in logged if not found.name.startswith("websockets")] == []


def test_a_message_that_is_too_large_is_refused(limited: RunningServer) -> None:
    with socket(limited) as connection:
        error = _ask(connection, input="x" * 1960)["error"]
        assert "GENAI_MAX_BODY_BYTES" in error["message"]
    with socket(limited) as connection, pytest.raises(ConnectionClosed):
        _ask(connection, input="x" * 5000)


@pytest.mark.parametrize("path", ["/v1/chat", "/v1/responses/resp_1/cancel", "/"])
def test_other_paths_have_no_websocket(scripted: RunningServer, path: str) -> None:
    assert _refusal(scripted, path) == 404


def _refusal(server: RunningServer, path: str = "/v1/responses", **options: Any) -> int:
    """The status of a handshake that is refused."""
    with pytest.raises(InvalidStatus) as refused, socket(server, path, **options):
        pass
    return int(refused.value.response.status_code)


def test_a_web_page_may_connect_only_if_its_origin_may(limited: RunningServer) -> None:
    for origin in (None, limited.url, "https://app.example"):
        with socket(limited, origin=origin) as connection:
            assert _ask(connection, input="say x")["type"] == "response.completed"
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://[::1"):
        assert _refusal(limited, origin=origin) == 403


def test_a_handshake_and_its_turns_need_a_key_within_its_limits(own_folder: Path) -> None:
    settings = {"GENAI_API_KEYS": f"alice:{ALICE}", "GENAI_RATE_PER_KEY": "1"}
    with run_here(own_folder, "--device", "scripted", settings=settings) as server:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            assert _refusal(server, additional_headers=headers) == 401
        with socket(server, additional_headers={"authorization": f"Bearer {ALICE}"}) as connection:
            assert _ask(connection, input="say x")["type"] == "response.completed"
            limited = _ask(connection, input="say x")
            assert (limited["status"], limited["error"]["code"]) == (429, "rate_limit_exceeded")
