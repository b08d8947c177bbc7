"""GET /v1/requests and POST /v1/requests/{id}/cancel over real sockets."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer, body, last_event, refusal, wait_until

ENDLESS = "delay 0.02; count 1000"


def listed(server: RunningServer) -> dict[str, dict[str, Any]]:
    """The entries of GET /v1/requests by name."""
    response = server.client.get("/v1/requests")
    assert response.status_code == 200, response.text
    assert response.json()["object"] == "list"
    return {entry["id"]: entry for entry in response.json()["data"]}


def named(server: RunningServer, name: str) -> list[dict[str, Any]]:
    return [entry for entry in server.client.get("/v1/requests").json()["data"] if entry["id"] == name]


def cancel(server: RunningServer, name: str) -> Any:
    return server.client.post(f"/v1/requests/{name}/cancel", json={})


@contextmanager
def asked(server: RunningServer, name: str, path: str, **fields: Any) -> Iterator[list[dict[str, Any]]]:
    """A request with this name that runs when the block starts; yields its response, filled in when the block ends."""
    found: list[dict[str, Any]] = []
    headers = {"x-request-id": name}
    others = {entry["unique_id"] for entry in named(server, name)}

    def runs() -> bool:
        return any(entry["output_tokens"] > 0 for entry in named(server, name) if entry["unique_id"] not in others)

    def ask() -> None:
        found.append(server.client.post(path, json=body(ENDLESS, **fields), headers=headers).json())

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        wait_until(runs)
        yield found
    except BaseException:
        for entry in named(server, name):  # nothing runs on into the next tests
            cancel(server, entry["unique_id"])
        raise
    finally:
        thread.join(90)
    assert found


def test_request_is_listed_with_device_phase_and_figures_and_cancelled(scripted: RunningServer) -> None:
    with asked(scripted, "whole", "/v1/chat", device="scripted:1") as found:
        entry = listed(scripted)["whole"]
        cancelled = cancel(scripted, "whole").json()
    expected = {"object": "request", "model": "demo", "device": "scripted:1", "phase": "decode", "cached_tokens": 0}
    assert entry == entry | expected
    assert (entry["prompt_tokens"] > len(ENDLESS), entry["age"] > 0) == (True, True)
    assert cancelled == {name: entry[name] for name in ("id", "unique_id", "object")} | {"cancelled": True}
    assert (found[0]["finish_reason"], found[0]["content"][:1]) == ("cancelled", "1")
    assert "whole" not in listed(scripted)


def test_a_cancelled_stream_has_one_last_event(scripted: RunningServer) -> None:
    with scripted.stream(ENDLESS) as events:
        reader = iter(events)
        next(reader)
        assert cancel(scripted, events.response.headers["x-request-id"]).status_code == 200
        rest = [json.loads(event) for event in reader]
    assert [event["finish_reason"] for event in rest if "finish_reason" in event] == ["cancelled"]
    assert rest[-1]["done"] is True


def test_all_answers_to_a_request_are_listed_and_end_together(scripted: RunningServer) -> None:
    with asked(scripted, "several", "/v1/chat/completions", n=3) as found:
        entries = named(scripted, "several")
        cancel(scripted, "several")
    assert (len(entries), len({entry["unique_id"] for entry in entries})) == (3, 1)
    reasons = [(choice["finish_reason"], choice["genai_finish_reason"]) for choice in found[0]["choices"]]
    assert reasons == [("length", "cancelled")] * 3


@contextmanager
def twins(server: RunningServer, name: str) -> Iterator[dict[str, Iterator[str]]]:
    """Two streams with the same request name on two devices, keyed by their unique ids; cancelled at the end."""
    headers = {"x-request-id": name}
    with ExitStack() as running:
        found: dict[str, Iterator[str]] = {}
        for device in ("scripted:0", "scripted:1"):
            client = running.enter_context(httpx.Client(base_url=server.url, timeout=90))
            content = body(ENDLESS, device=device)
            response = running.enter_context(client.stream("POST", "/v1/chat/stream", json=content, headers=headers))
            assert response.headers["x-request-id"] == name
            (entry,) = (entry for entry in named(server, name) if entry["device"] == device)
            found[entry["unique_id"]] = response.iter_lines()
        yield found
        for unique_id in found:
            cancel(server, unique_id)


def test_ambiguous_request_id_is_refused_until_unique_id_is_sent(scripted: RunningServer) -> None:
    with twins(scripted, "twin") as streams:
        first, second = streams
        assert first != second
        response = cancel(scripted, "twin")
        assert refusal(response) == (409, "request_ambiguous", "request_id")
        message = response.json()["error"]["message"]
        assert message.startswith('2 requests have the id "twin"; choose one by its unique_id, one of ')
        assert first in message
        assert second in message
        assert refusal(scripted.options(terminate_session="1", request_id="twin"))[:2] == (409, "request_ambiguous")
        assert {entry["unique_id"] for entry in named(scripted, "twin")} == {first, second}

        reply = cancel(scripted, second).json()
        assert reply == {"id": "twin", "unique_id": second, "object": "request", "cancelled": True}
        assert '"finish_reason":"cancelled"' in "".join(streams[second])
        assert [entry["unique_id"] for entry in named(scripted, "twin")] == [first]
        assert scripted.options(terminate_session="1", request_id=first).status_code == 200
        assert '"finish_reason":"terminated"' in "".join(streams[first])


def test_unique_id_precedes_an_equal_request_id(scripted: RunningServer) -> None:
    with scripted.stream(ENDLESS) as events:
        unique_id = events.response.headers["x-request-id"]
        with asked(scripted, unique_id, "/v1/chat", device="scripted:1") as found:
            assert len(named(scripted, unique_id)) == 2
            assert cancel(scripted, unique_id).json()["unique_id"] == unique_id
            assert '"finish_reason":"cancelled"' in "".join(events)
            (other,) = named(scripted, unique_id)
            assert other["unique_id"] != unique_id
            assert cancel(scripted, unique_id).json()["unique_id"] == other["unique_id"]
    assert found[0]["finish_reason"] == "cancelled"


def test_cancelling_takes_no_fields_and_needs_no_body(scripted: RunningServer) -> None:
    assert refusal(cancel(scripted, "missing"))[:2] == (404, "request_not_found")
    response = scripted.client.post("/v1/requests/x/cancel", json={"reason": "dull"})
    assert response.json()["error"]["param"] == "reason"
    response = scripted.client.post("/v1/requests/x/cancel", headers={"content-type": "application/json"})
    assert response.status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/requests"),
        ("POST", "/v1/requests/x/cancel"),
        ("GET", "/v1/admin/usage"),
        *(("GET", f"/v1/admin/profiles{path}") for path in ("", "/latest", "/latest/report", "/latest/files")),
        ("POST", "/v1/admin/profiles"),
        ("POST", "/start_profile"),
        ("POST", "/v1/admin/adapters/load"),
        ("POST", "/v1/admin/adapters/unload"),
    ],
)
def test_calls_of_operators_are_for_them_only(scripted: RunningServer, method: str, path: str) -> None:
    headers = {"x-forwarded-for": "10.0.0.1", "content-type": "application/json"}
    assert scripted.client.request(method, path, headers=headers).status_code == 403


def test_any_of_several_api_processes_knows_the_requests_of_all(workers: RunningServer) -> None:
    with workers.stream(ENDLESS) as events:
        reader = iter(events)
        next(reader)
        name = events.response.headers["x-request-id"]
        # Fresh connections reach either process.
        headers = {"connection": "close"}
        for _ in range(6):
            response = workers.client.get("/v1/requests", headers=headers)
            assert [entry["id"] for entry in response.json()["data"]] == [name]
        assert workers.client.post(f"/v1/requests/{name}/cancel", json={}, headers=headers).status_code == 200
        assert last_event(reader)["finish_reason"] == "cancelled"
