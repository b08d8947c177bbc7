"""Whose requests there are: the names of API keys in lists, log and metrics, and the usage of each."""

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_server import RunningServer, body, clean_environment, run_command, run_server, wait_until
from tests.scraped import parse

ALICE, BOB, ADMIN = "alices-key-0123456789", "bobs-key-0123456789", "admins-key-0123456789"
SETTINGS = {
    "GENAI_API_KEYS": f"alice:{ALICE},bob:{BOB}",
    "GENAI_ADMIN_API_KEY": ADMIN,
    "GENAI_DEVICE": "scripted",
    "GENAI_METRICS_KEYS": "true",
}


def _asked(server: RunningServer, key: str, **fields: Any) -> httpx.Response:
    return server.client.post("/v1/chat/completions", json=body("say hi", **fields), headers={"x-api-key": key})


def _admin(server: RunningServer, path: str) -> Any:
    """What an admin endpoint answers."""
    return server.client.get(path, headers={"x-api-key": ADMIN}).json()


def _usage(server: RunningServer) -> list[tuple[str | None, int, int, int]]:
    """The entries' key, requests, refused ones and output tokens."""
    entries = _admin(server, "/v1/admin/usage")["data"]
    return [(each["key_name"], each["requests"], each["refused"], each["output_tokens"]) for each in entries]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that alice, bob and an operator have used."""
    with run_server(tmp_path_factory.mktemp("used"), settings=SETTINGS) as server:
        assert [_asked(server, key).status_code for key in (ALICE, ALICE, BOB, ADMIN)] == [200] * 4
        assert _asked(server, BOB, temperature=9).status_code == 400
        yield server


def test_ended_requests_name_their_keys(used: RunningServer) -> None:
    ended = [(each["key_name"], each["status"]) for each in _admin(used, "/v1/requests/ended")["data"]]
    assert ended == [("bob", 400), ("(admin)", 200), ("bob", 200), ("alice", 200), ("alice", 200)]


def test_running_requests_name_their_keys(used: RunningServer) -> None:
    asked = body("count 900; delay 0.05", stream=True)
    with used.client.stream("POST", "/v1/chat/completions", json=asked, headers={"x-api-key": BOB}) as response:
        lines = response.iter_lines()  # closes the response with it
        next(lines)
        with httpx.Client(base_url=used.url, headers={"x-api-key": ADMIN}, timeout=90) as client:
            (running,) = client.get("/v1/requests").json()["data"]
    assert running["key_name"] == "bob"
    wait_until(lambda: not _admin(used, "/v1/requests")["data"])


def test_log_names_keys_and_shows_none(used: RunningServer) -> None:
    lines = [line for line in used.log().splitlines() if "path=/v1/chat/completions" in line]
    names = [line.partition("key_name=")[2].split()[0] for line in lines[:5]]
    assert names == ["alice", "alice", "bob", "(admin)", "bob"]
    assert not any(key in used.log() for key in (ALICE, BOB, ADMIN))


def test_counters_of_requests_and_tokens_have_keys_if_asked_for(used: RunningServer) -> None:
    def value(name: str, key: str) -> float:
        scraped = parse(used.client.get("/metrics", headers={"x-api-key": ADMIN}).text)
        return scraped.value(name, key_name=key)

    assert value("request_success_total", "alice") == 2
    assert value("request_rejected_total", "bob") == 1
    wait_until(lambda: value("generation_tokens_total", "alice") == 2 * len("hi"))
    assert value("prompt_tokens_total", "(admin)") == len("say hi\n\x04")


def test_requests_without_keys_have_no_name(scripted: RunningServer) -> None:
    scripted.chat("say hi")
    for path in ("/v1/requests/ended", "/v1/admin/usage"):
        assert scripted.client.get(path).json()["data"][0]["key_name"] is None
    assert "key_name" not in scripted.client.get("/metrics").text


def test_usage_is_listed_by_key_with_the_day(used: RunningServer) -> None:
    before = datetime.now(UTC).date().isoformat()
    entries = _admin(used, "/v1/admin/usage")["data"]
    assert {each["day"] for each in entries} <= {before, datetime.now(UTC).date().isoformat()}
    assert ("alice", 2, 0, 2 * len("hi")) in _usage(used)
    assert [(requests > 0, refused) for key, requests, refused, _ in _usage(used) if key == "bob"] == [(True, 1)]
    assert _admin(used, "/v1/admin/usage?until=2020-01-01") == {"object": "list", "data": []}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("since=yesterday", 'since must be a day, such as 2026-11-28; given "yesterday"'),
        ("until=2026-02-30", 'until must be a day, such as 2026-11-28; given "2026-02-30"'),
        ("key=alice", "key is not a field of this endpoint"),
    ],
)
def test_wrong_days_are_refused(used: RunningServer, query: str, message: str) -> None:
    assert _admin(used, f"/v1/admin/usage?{query}")["error"]["message"] == message


@pytest.mark.slow
def test_usage_outlives_the_server_and_several_processes_add_up(own_folder: Path) -> None:
    settings = {**SETTINGS, "GENAI_USAGE_FILE": str(own_folder / "usage.sqlite"), "WORKERS": "2"}
    for number in (1, 2):
        with run_server(own_folder, settings=settings) as server:
            for _ in range(4):
                with httpx.Client(base_url=server.url, timeout=90) as client:
                    assert client.post("/v1/chat", json=body("say hi"), headers={"x-api-key": BOB}).status_code == 200
            wait_until(lambda: _usage(server) == [("bob", 4 * number, 0, 8 * number)])  # noqa: B023


def test_command_prints_usage_by_day_and_in_all(used: RunningServer) -> None:
    def usage(key: str, *options: str) -> "subprocess.CompletedProcess[str]":
        return run_command("usage", used.url, "--api-key", key, *options, environment=clean_environment())

    done = usage(ADMIN)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0][:3] == ["day", "key", "model"]
    assert ["alice", "demo", "2"] in [row[1:4] for row in rows]
    assert ["alice", "2", "0", "16", "0", "4"] in rows
    assert {each["key_name"] for each in json.loads(usage(ADMIN, "--json").stdout)} == {"alice", "bob", "(admin)"}
    refused = usage(BOB)
    assert (refused.returncode != 0, "GENAI_ADMIN_API_KEY" in refused.stderr) == (True, True)
