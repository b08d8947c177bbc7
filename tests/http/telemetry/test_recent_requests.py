"""GET /v1/requests/ended: what the server remembers of requests."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genai_server.http.telemetry.request_record import MAX_REQUESTS, RecentRequests, RequestRecord
from genai_server.timing import Arrival
from tests.running_server import RunningServer, body, run_server, wait_until


@dataclass
class _Route:
    path: str


def test_ended_requests_have_figures_and_no_text(scripted: RunningServer) -> None:
    before = time.time()
    scripted.chat("say secretword", device="scripted:1")
    scripted.chat("say secretword", temperature=9)
    scripted.client.get("/v1/requests")
    response = scripted.client.get("/v1/requests/ended", params={"since": before})
    assert "secretword" not in response.text
    refused, answered = response.json()["data"]
    assert (answered["status"], answered["finish_reason"], answered["error"]) == (200, "stop", None)
    assert (answered["path"], answered["device"]) == ("/v1/chat", "scripted:1")
    assert answered["prompt_tokens"] > 0
    assert answered["output_tokens"] > 0
    assert 0 < answered["ttft"] <= answered["seconds"]
    assert (refused["status"], refused["path"], refused["output_tokens"]) == (400, "/v1/chat", 0)
    assert refused["error"]
    assert scripted.client.get("/v1/requests/ended", params={"since": time.time()}).json()["data"] == []


def test_any_of_several_api_processes_knows_ended_requests(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted", "--workers", "2") as server:
        for number in range(8):
            headers = {"connection": "close", "x-request-id": f"{number}"}
            server.client.post("/v1/chat", json=body("say a"), headers=headers)
        wanted = {f"{number}" for number in range(8)}

        def is_known() -> bool:
            found = server.client.get("/v1/requests/ended", headers={"connection": "close"}).json()["data"]
            return {entry["id"] for entry in found} == wanted

        for _ in range(4):
            wait_until(is_known)


def test_only_the_last_requests_are_kept(tmp_path: Path) -> None:
    recent = RecentRequests()
    recent.open(tmp_path)
    scope: dict[str, Any] = {"method": "POST", "type": "http", "route": _Route("/v1/chat")}
    for number in range(2 * MAX_REQUESTS + 50):
        record = RequestRecord(scope, f"{number}", f"req-{number}", "m", Arrival(time.monotonic), 0.0, status=503)
        recent.observe(record)
    (file,) = tmp_path.iterdir()
    assert len(file.read_text().splitlines()) <= 2 * MAX_REQUESTS
    with file.open("a") as other:
        other.write('{"cut')
    found = recent.ended_after(0)
    assert len(found) == MAX_REQUESTS
    assert {int(entry["id"]) for entry in found} == set(range(MAX_REQUESTS + 50, 2 * MAX_REQUESTS + 50))


def test_requests_that_read_or_have_no_route_are_not_kept(tmp_path: Path) -> None:
    recent = RecentRequests()
    recent.open(tmp_path)
    reading: dict[str, Any] = {"method": "GET", "route": _Route("/v1/models")}
    for scope in (reading, {"method": "POST"}):
        recent.observe(RequestRecord(scope, "a", "b", "m", Arrival(time.monotonic), 0.0, status=404))
    assert recent.ended_after(0) == []
