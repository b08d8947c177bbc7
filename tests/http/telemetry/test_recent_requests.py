"""GET /v1/requests/ended: what the server remembers of requests."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from genai_server.http.telemetry.recent_requests import MAX_REQUESTS, RecentRequests
from genai_server.http.telemetry.request_record import RequestRecord
from genai_server.timing import Arrival
from tests.running_server import RunningServer, body, wait_until


@dataclass
class _Route:
    path: str


def test_ended_requests_have_figures_and_no_text(scripted: RunningServer) -> None:
    before = time.time()
    scripted.chat("say secretword", device="scripted:1")
    scripted.chat("say secretword", temperature=9)
    scripted.chat("say x", model="gpt-5\n" + 200 * "x")
    scripted.client.get("/v1/requests")
    response = scripted.client.get("/v1/requests/ended", params={"since": before})
    assert "secretword" not in response.text
    unknown, refused, answered = response.json()["data"]
    common = {"path": "/v1/chat", "device": "scripted:1", "output_tokens": len("secretword")}
    assert ({"status": 200, "finish_reason": "stop", "error": None} | common).items() <= answered.items()
    assert answered["prompt_tokens"] > 0
    assert 0 < answered["ttft"] <= answered["seconds"]
    assert {"status": 400, "path": "/v1/chat", "output_tokens": 0}.items() <= refused.items()
    assert refused["error"]
    # The name that it asked for, up to 100 characters.
    assert (unknown["error"], unknown["model"]) == ("model_not_found", "gpt-5\\n" + 94 * "x")
    assert scripted.client.get("/v1/requests/ended", params={"since": time.time()}).json()["data"] == []


def test_any_of_several_api_processes_knows_ended_requests(workers: RunningServer) -> None:
    wanted = {f"ended-{number}" for number in range(8)}
    for name in wanted:
        headers = {"connection": "close", "x-request-id": name}
        workers.client.post("/v1/chat", json=body("say a"), headers=headers)

    def is_known() -> bool:
        found = workers.client.get("/v1/requests/ended", headers={"connection": "close"}).json()["data"]
        return wanted <= {entry["id"] for entry in found}

    for _ in range(4):
        wait_until(is_known)


@pytest.fixture
def recent(tmp_path: Path) -> Iterator[RecentRequests]:
    with closing(RecentRequests()) as found:
        found.open(tmp_path)
        yield found


def _ended(number: int, path: str = "/v1/chat") -> RequestRecord:
    scope: dict[str, Any] = {"method": "POST", "type": "http", "route": _Route(path)}
    return RequestRecord(scope, f"{number}", f"req-{number}", "m", Arrival(time.monotonic), 0.0, status=503)


def _numbers(text: str) -> list[int]:
    """The ids of the requests in a file that may end in a line that is cut off."""
    return [int(json.loads(line)["id"]) for line in text.splitlines() if line.endswith("}")]


def test_only_the_last_requests_are_kept(recent: RecentRequests, tmp_path: Path) -> None:
    last = range(MAX_REQUESTS + 50, 2 * MAX_REQUESTS + 50)
    for number in range(2 * MAX_REQUESTS + 50):
        recent.observe(_ended(number))
    assert [int(entry["id"]) for entry in recent.ended_after(0)] == list(reversed(last))


def test_file_for_other_processes_is_bounded_and_may_be_read_while_it_is_written(
    recent: RecentRequests, tmp_path: Path
) -> None:
    for number in range(5 * MAX_REQUESTS):
        recent.observe(_ended(number))
        if number % 30 == 0:  # the thread has written some
            wait_until(lambda number=number: number in _numbers(_only_file(tmp_path)))  # type: ignore[misc]
            assert len(_only_file(tmp_path).splitlines()) <= 2 * MAX_REQUESTS
    wait_until(lambda: _numbers(_only_file(tmp_path))[-1] == 5 * MAX_REQUESTS - 1)
    with (tmp_path / "recent-requests-0.jsonl").open("a") as other:
        other.write(json.dumps({"id": "another", "ended": time.time() + 1}) + "\n")
        other.write('{"cut')
    found = recent.ended_after(0)
    assert len(found) == MAX_REQUESTS
    assert [entry["id"] for entry in found[:2]] == ["another", f"{5 * MAX_REQUESTS - 1}"]


@pytest.mark.skipif(sys.platform == "win32", reason="no FIFOs")
def test_a_disk_that_hangs_delays_nothing(tmp_path: Path) -> None:
    """The file is a FIFO that nobody reads: opening it blocks."""
    os.mkfifo(tmp_path / f"recent-requests-{os.getpid()}.jsonl")
    with closing(RecentRequests()) as recent:
        recent.open(tmp_path)
        for number in range(3 * MAX_REQUESTS):
            recent.observe(_ended(number))
        assert int(recent.ended_after(0)[0]["id"]) == 3 * MAX_REQUESTS - 1


def test_requests_that_read_or_have_no_route_are_not_kept(recent: RecentRequests) -> None:
    reading: dict[str, Any] = {"method": "GET", "route": _Route("/v1/models")}
    for scope in (reading, {"method": "POST"}):
        recent.observe(RequestRecord(scope, "a", "b", "m", Arrival(time.monotonic), 0.0, status=404))
    assert recent.ended_after(0) == []


def _only_file(folder: Path) -> str:
    """The text of the only file in a folder; empty without one."""
    return "".join(file.read_text() for file in folder.iterdir())
