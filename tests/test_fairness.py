"""One API key never holds up another, over real sockets; the order of turns is tested in tests/engine/scheduling."""

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import httpx
import pytest

from genai_server.http.api_keys import line_of
from tests.running_server import RunningServer, body, refusal, wait_until
from tests.server_here import run_here

ADMIN = "admin-0123456789abcdef"
ENDLESS = "delay 0.02; count 1000"


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-0123456789abcdef"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two requests run at once and four wait."""
    folder = tmp_path_factory.mktemp("fairness")
    names = {"alice": "", "bob": "", "carol": " concurrent=4", "boss": " priority=absolute"}
    lines = [line_of(name, f"{name}-0123456789abcdef") + words for name, words in names.items()]
    (folder / "keys").write_text("\n".join(lines))
    limits = ("--max-batch-size", "2", "--max-queue", "4", "--max-length", "4000")
    keys = ("--api-key-file", str(folder / "keys"), "--admin-api-key", ADMIN)
    with run_here(folder, "--device", "scripted", *limits, *keys) as running:
        running.client.headers["authorization"] = f"Bearer {ADMIN}"
        yield running


def listed(server: RunningServer) -> dict[str, dict[str, Any]]:
    return {entry["id"]: entry for entry in server.client.get("/v1/requests").json()["data"]}


def begin(server: RunningServer, stack: ExitStack, holder: str, name: str, content: str, **fields: Any) -> None:
    """Begin a request that is cancelled at the end of the stack, and wait until the engine has it."""
    connection = stack.enter_context(closing(http.client.HTTPConnection(server.url.removeprefix("http://"))))
    headers = {"content-type": "application/json", "x-request-id": name, **key(holder)}
    connection.request("POST", "/v1/chat/completions", json.dumps(body(content, model="demo", **fields)), headers)
    wait_until(lambda: name in listed(server))


def ask(server: RunningServer, holder: str, content: str, **fields: Any) -> httpx.Response:
    return server.client.post("/v1/chat/completions", json=body(content, model="demo", **fields), headers=key(holder))


@pytest.fixture
def attack(server: RunningServer) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
    wait_until(lambda: listed(server) == {})


def test_a_full_queue_of_one_key_refuses_no_request_of_another(server: RunningServer, attack: ExitStack) -> None:
    for number in range(6):
        begin(server, attack, "alice", f"alice-{number}", ENDLESS)
    response = ask(server, "alice", "say x")
    assert refusal(response)[:2] == (503, "queue_full")
    for _ in range(3):
        response = ask(server, "bob", "say hello")
        assert response.json()["choices"][0]["message"]["content"] == "hello"
    assert len(listed(server)) == 6


@pytest.mark.parametrize("fields", [{"priority": -1000}, {"n": 3}], ids=["priority", "n"])
def test_neither_priority_nor_several_answers_hold_up_another_key(
    server: RunningServer, attack: ExitStack, fields: dict[str, Any]
) -> None:
    for number in range(2):
        begin(server, attack, "alice", f"alice-{number}", ENDLESS, **fields)
    response = ask(server, "bob", "say hello")
    assert response.json()["choices"][0]["message"]["content"] == "hello"


def test_a_key_with_absolute_priority_goes_before_others(server: RunningServer, attack: ExitStack) -> None:
    for number in range(2):
        begin(server, attack, "boss", f"boss-{number}", ENDLESS, priority=-1)
    begin(server, attack, "bob", "bob-1", ENDLESS)
    wait_until(lambda: listed(server)["boss-1"]["output_tokens"] > 3)
    phases = {name: entry["phase"] for name, entry in listed(server).items()}
    assert phases == {"boss-0": "decode", "boss-1": "decode", "bob-1": "queued"}


def test_each_answer_counts_towards_the_limit_of_its_key(server: RunningServer, attack: ExitStack) -> None:
    response = ask(server, "carol", "say x", n=5)
    assert refusal(response) == (400, "invalid_value", "n")
    assert "at once, 4 (GENAI_MAX_CONCURRENT_PER_KEY" in response.json()["error"]["message"]
    begin(server, attack, "carol", "carol", ENDLESS, n=3)
    response = ask(server, "carol", "say x", n=2)
    assert refusal(response)[:2] == (429, "rate_limit_exceeded")
    begin(server, attack, "carol", "carol-1", ENDLESS)
    response = ask(server, "carol", "say x")
    assert "too many concurrent requests: this key may have 4, and has 4" in response.json()["error"]["message"]
