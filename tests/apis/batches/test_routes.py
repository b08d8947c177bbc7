"""OpenAI's /v1/batches over HTTP, with scripted devices and with the demo models."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from genai_server.apis.batches import running as running_batches
from tests.apis.batches.inputs import (
    CHAT,
    begin,
    ended,
    error_codes,
    get,
    jsonl,
    line,
    num_running,
    ran,
    results,
    upload,
    wanted,
)
from tests.running_server import DEMO, RunningServer, refusal, wait_until
from tests.scraped import scrape
from tests.server_here import run_here

ALICE, BOB, ADMIN = "alice-0123456789abcdef", "bob-0123456789abcdef", "admin-0123456789abcdef"
OF_BOB, OF_ADMIN = ({"authorization": f"Bearer {key}"} for key in (BOB, ADMIN))


@contextmanager
def serving(folder: Path, key: str = "", **settings: str) -> Iterator[RunningServer]:
    """A scripted server with files, which a client with this key asks."""
    own = {"GENAI_DEVICE": "scripted", "GENAI_FILES_DIR": str(folder / "files")}
    with run_here(folder, settings={**own, **settings}) as running:
        if key:
            running.client.headers["authorization"] = f"Bearer {key}"
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    keys = {"GENAI_API_KEYS": f"alice:{ALICE},bob:{BOB}", "GENAI_ADMIN_API_KEY": ADMIN}
    limits = {"GENAI_MAX_BATCH_SIZE": "4", "GENAI_MAX_BATCH_REQUESTS": "50"}
    with serving(tmp_path_factory.mktemp("batches"), ALICE, **keys, **limits) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=ALICE, max_retries=0) as client:
        yield client


def test_openais_client_runs_a_batch(client: openai.OpenAI, tmp_path: Path) -> None:
    lines = [line(f"line {number}", f"say {number}") for number in range(20)]
    lines[7]["body"]["max_tokens"] = -1
    path = tmp_path / "input.jsonl"
    path.write_bytes(jsonl(lines))
    with path.open("rb") as file:
        uploaded = client.files.create(file=file, purpose="batch")
    batch: Any = client.batches.create(
        input_file_id=uploaded.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"of": "a test"},
        extra_body={"output_expires_after": {"anchor": "created_at", "seconds": 7200}},
    )
    assert batch.status == "validating"
    wait_until(lambda: client.batches.retrieve(batch.id).status == "completed")
    batch = client.batches.retrieve(batch.id)
    assert batch.request_counts.to_dict() == {"total": 20, "completed": 19, "failed": 1}
    assert batch.metadata == {"of": "a test"}
    times = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at, batch.expires_at]
    assert times == sorted(times)
    output = client.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert output.expires_at == output.created_at + 7200
    found = [json.loads(text) for text in client.files.content(output.id).text.splitlines()]
    assert {each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"] for each in found} == {
        f"line {number}": f"{number}" for number in range(20) if number != 7
    }
    (failed,) = map(json.loads, client.files.content(batch.error_file_id).text.splitlines())
    assert (failed["custom_id"], failed["response"]["status_code"], failed["error"]) == ("line 7", 400, None)
    assert failed["response"]["body"]["error"]["param"] == "max_tokens"
    assert batch.id in [listed.id for listed in client.batches.list()]


def test_a_batch_without_failures_has_no_error_file_and_is_its_keys(server: RunningServer) -> None:
    batch = ran(server.client, [line("a")])
    assert batch["error_file_id"] is None
    assert len(results(server.client, batch["output_file_id"])) == 1
    output = f"/v1/files/{batch['output_file_id']}/content"
    assert server.client.get(output, headers=OF_BOB).status_code == 404
    # Its results are no input, and it cannot be cancelled any more.
    again = server.client.post("/v1/batches", json=wanted(batch["output_file_id"]))
    assert refusal(again) == (400, "invalid_value", "input_file_id")
    response = server.client.post(f"/v1/batches/{batch['id']}/cancel")
    assert refusal(response) == (400, "invalid_value", "batch_id")


WRONG = [
    (b"{", "invalid_json_line", None),
    (b"[]", "invalid_json_line", None),
    (b'{"custom_id": "\xff"}', "invalid_type", "custom_id"),
    (jsonl([{**line("a"), "custom_id": 7}]), "invalid_type", "custom_id"),
    (jsonl([line("")]), "invalid_custom_id", "custom_id"),
    (jsonl([line("x" * 513)]), "invalid_custom_id", "custom_id"),
    (jsonl([{**line("a"), "method": "GET"}]), "invalid_method", "method"),
    (jsonl([line("a", url="/v1/completions")]), "invalid_url", "url"),
    (jsonl([{"custom_id": "a", "method": "POST", "url": CHAT}]), "missing_required_parameter", "body"),
    (jsonl([{**line("a"), "body": []}]), "invalid_type", "body"),
    (jsonl([line("a", stream=True)]), "unsupported_parameter", "body.stream"),
    (jsonl([line("a", background=True)]), "unsupported_parameter", "body.background"),
    (jsonl([line("a", model="nobody")]), "model_not_found", "body.model"),
    (jsonl([line("a", model=1)]), "invalid_type", "body.model"),
    (jsonl([line("first")]), "duplicate_custom_id", "custom_id"),
]


def test_wrong_lines_fail_the_batch_before_any_work(server: RunningServer) -> None:
    content = jsonl([line("first", stream=False)]) + b"".join(text.rstrip() + b"\n\n" for text, _, _ in WRONG)
    batch = ran(server.client, content)
    assert (batch["status"], batch["failed_at"] is None) == ("failed", False)
    assert batch["output_file_id"] is batch["error_file_id"] is None
    found = [(error["line"], error["code"], error["param"]) for error in batch["errors"]["data"]]
    # Blank lines count, and are no requests.
    assert found == [(2 + 2 * place, code, param) for place, (_, code, param) in enumerate(WRONG)]


def test_a_line_over_the_limit_of_bodies_is_refused(server: RunningServer) -> None:
    long, short = line("long", "x" * 1024 * 1024), line("short", "x" * (1024 * 1024 - 200))
    errors = ran(server.client, [line("a"), long, short, line("a")])["errors"]["data"]
    assert [(error["line"], error["code"]) for error in errors] == [(2, "body_too_large"), (4, "duplicate_custom_id")]


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_input_without_requests_fails(server: RunningServer, content: bytes) -> None:
    assert error_codes(ran(server.client, content)) == ["empty_file"]


def test_a_batch_has_a_limit_of_requests(server: RunningServer) -> None:
    (error,) = ran(server.client, [line(f"{number}") for number in range(51)])["errors"]["data"]
    assert (error["code"], error["line"]) == ("too_many_requests", None)
    assert "at most 50 requests (GENAI_MAX_BATCH_REQUESTS)" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_file_id": "file-0"}, "input_file_id"),
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"stream": True}, "stream"),
    ],
)
def test_a_batch_that_cannot_be_created_names_the_field(
    server: RunningServer, fields: dict[str, Any], param: str
) -> None:
    response = refusal(server.client.post("/v1/batches", json=wanted("file-0") | fields))
    assert (response[0], response[2]) == (400, param)


def test_a_cancelled_batch_keeps_its_results(server: RunningServer) -> None:
    lines = [line(f"{number}", "say yes" if number < 2 else "count 400; delay 0.05") for number in range(12)]
    id = begin(server.client, lines)
    wait_until(lambda: get(server.client, id)["request_counts"]["completed"] == 2)
    file = get(server.client, id)["input_file_id"]
    assert refusal(server.client.delete(f"/v1/files/{file}")) == (400, "invalid_value", "file_id")
    assert server.client.post(f"/v1/batches/{id}/cancel").json()["status"] == "cancelling"
    batch = ended(server.client, id)
    assert (batch["status"], batch["request_counts"]) == ("cancelled", {"total": 12, "completed": 2, "failed": 10})
    assert batch["cancelling_at"] <= batch["cancelled_at"]
    assert set(results(server.client, batch["output_file_id"])) == {"0", "1"}
    failed = results(server.client, batch["error_file_id"])
    assert {each["error"]["code"] for each in failed.values()} == {"batch_cancelled"}
    assert failed["2"]["response"] is None
    wait_until(lambda: num_running(server.client, OF_ADMIN) == 0)
    assert server.client.post(f"/v1/batches/{id}/cancel").json()["status"] == "cancelled"
    assert server.client.delete(f"/v1/files/{file}").status_code == 200


def test_requests_left_at_the_end_of_the_window_expire(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    id = begin(server.client, [line("short"), *(line(f"{number}", "count 400; delay 0.05") for number in range(6))])
    wait_until(lambda: get(server.client, id)["request_counts"]["completed"] == 1)
    later = time.time() + 90_000
    monkeypatch.setattr(running_batches, "time", SimpleNamespace(time=lambda: later))
    batch = ended(server.client, id)
    assert (batch["status"], batch["request_counts"]) == ("expired", {"total": 7, "completed": 1, "failed": 6})
    assert batch["expired_at"] >= batch["expires_at"]
    failed = results(server.client, batch["error_file_id"])
    assert {each["error"]["code"] for each in failed.values()} == {"batch_expired"}


def test_batches_of_other_keys_do_not_exist(server: RunningServer) -> None:
    id = begin(server.client, [line("a")])
    for method, path in (("GET", ""), ("POST", "/cancel")):
        response = server.client.request(method, f"/v1/batches/{id}{path}", headers=OF_BOB)
        assert refusal(response) == (404, "batch_not_found", "batch_id")
    assert server.client.get("/v1/batches", headers=OF_BOB).json()["data"] == []
    asked = wanted(get(server.client, id)["input_file_id"])
    refused = server.client.post("/v1/batches", json=asked, headers=OF_BOB)
    assert refusal(refused) == (400, "invalid_value", "input_file_id")


def test_a_long_queue_of_batches_ends_in_order_and_is_listed_page_by_page(server: RunningServer) -> None:
    ids = [begin(server.client, [line("a")], headers=OF_BOB) for _ in range(3)]

    def page(**query: str | int) -> tuple[list[str], bool]:
        found = server.client.get("/v1/batches", params=query, headers=OF_BOB).json()
        return [batch["id"] for batch in found["data"]], found["has_more"]

    assert page() == (ids[::-1], False)
    assert page(limit=2) == ([ids[2], ids[1]], True)
    assert page(after=ids[1]) == ([ids[0]], False)
    times = [ended(server.client, id, OF_BOB)["completed_at"] for id in ids]
    assert times == sorted(times)
    assert times[-1] <= time.time()


def test_a_server_that_takes_no_requests_fails_none(tmp_path: Path) -> None:
    """Its session is terminated, and the batch's key may begin no ten requests in a minute."""
    keys = {"GENAI_API_KEYS": f"alice:{ALICE}", "GENAI_ADMIN_API_KEY": ADMIN}
    limits = {"GENAI_RATE_PER_KEY": "4", "GENAI_MAX_CONCURRENT_PER_KEY": "1"}
    with serving(tmp_path, ALICE, **keys, **limits) as server:
        server.chat("say hello")

        def terminate(value: str) -> None:
            options = {"terminate_session": value}
            server.client.post("/v1/admin/runtime_options", json=options, headers=OF_ADMIN).raise_for_status()

        terminate("1")
        id = begin(server.client, [line(f"{number}") for number in range(10)])
        wait_until(lambda: scrape(server).value("batch_requests_total", result="retried") >= 1)
        terminate("0")
        batch = ended(server.client, id)
        counted = scrape(server)
    assert batch["request_counts"] == {"total": 10, "completed": 10, "failed": 0}
    assert counted.value("batches_total", status="completed") == 1
    assert counted.value("batch_requests_total", result="completed") == 10
    # Only the chat's time counts, because no client waits for the others.
    assert counted.value("time_to_first_token_seconds_count") == 1
    assert counted.value("request_success_total") == 11


def test_only_the_request_that_kills_engines_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_batches, "_DEATH_PAUSE", (0.0, 0.5))
    with serving(tmp_path, GENAI_MAX_BATCH_SIZE="2") as server:
        lines = [line("poison", "count 9; crash at 2"), *(line(f"{number}", "count 9") for number in range(12))]
        batch = ran(server.client, lines)
        failed = results(server.client, batch["error_file_id"])
    assert failed["poison"]["response"]["body"]["error"]["code"] == "engine_died"
    assert batch["request_counts"]["total"] == 13
    assert batch["request_counts"]["completed"] >= 11  # one can be with it each time


def test_all_endpoints_answer_batches(tmp_path: Path) -> None:
    settings = {"GENAI_MODELS": f"chat={DEMO},vectors={DEMO}-embeddings", "GENAI_FILES_DIR": str(tmp_path / "files")}
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": "2 + 3?"}], "max_tokens": 4},
        "/v1/completions": {"prompt": "2 + 3 =", "max_tokens": 4, "model": "chat"},
        "/v1/responses": {"input": "2 + 3?", "max_output_tokens": 4, "store": False},
        "/v1/embeddings": {"input": ["one", "two"], "model": "vectors"},
    }
    with run_here(tmp_path, settings=settings) as server:
        lines = {url: [{"custom_id": "a", "method": "POST", "url": url, "body": body}] for url, body in bodies.items()}
        ids = {url: begin(server.client, content, url) for url, content in lines.items()}
        for url, id in ids.items():
            batch = ended(server.client, id)
            (found,) = results(server.client, batch["output_file_id"]).values()
            answered = server.client.post(url, json=bodies[url]).json()
            assert found["response"]["body"].keys() == answered.keys()
            assert batch["usage"]["input_tokens"] > 0
        assert error_codes(ran(server.client, [line("a", model="vectors")])) == ["unsupported_task"]


def test_a_batch_waits_for_room_for_its_results(tmp_path: Path) -> None:
    url = "/v1/completions"
    # A text that no template ends obeys its script only with the byte that ends a prompt.
    body = {"prompt": f"{'x' * 4000}\ncount 5; delay 0.02\x04", "echo": True, "max_tokens": 5}
    lines = [{"custom_id": f"{number}", "method": "POST", "url": url, "body": body} for number in range(15)]
    with serving(tmp_path, GENAI_MAX_BATCH_SIZE="1", GENAI_FILES_BYTES_PER_KEY="140000") as server:
        # There is space for the results of a few requests.
        other = upload(server.client, b"x" * (130_000 - len(jsonl(lines))))["id"]
        id = begin(server.client, lines, url)
        wait_until(lambda: get(server.client, id)["errors"] is not None)
        wait_until(lambda: num_running(server.client) == 0)
        batch = get(server.client, id)
        assert (batch["status"], batch["request_counts"]["completed"] < 15) == ("in_progress", True)
        (reason,) = batch["errors"]["data"]
        assert reason["code"] == "storage_full"
        assert "(GENAI_FILES_BYTES_PER_KEY)" in reason["message"]
        server.client.delete(f"/v1/files/{other}")
        batch = ended(server.client, id)
        assert batch["request_counts"] == {"total": 15, "completed": 15, "failed": 0}
        assert batch["errors"] is None


def test_a_key_with_a_long_batch_delays_no_other_key(server: RunningServer) -> None:
    long = begin(server.client, [line(f"{number}", "count 15; delay 0.02") for number in range(50)])
    wait_until(lambda: get(server.client, long)["status"] == "in_progress")
    assert ended(server.client, begin(server.client, [line("a")], headers=OF_BOB), OF_BOB)["status"] == "completed"
    assert get(server.client, long)["status"] == "in_progress"
    server.client.post(f"/v1/batches/{long}/cancel")
    ended(server.client, long)


def test_responses_of_a_batch_are_stored_on_demand(server: RunningServer) -> None:
    lines = [
        {"custom_id": id, "method": "POST", "url": "/v1/responses", "body": {"input": "say yes", "store": stored}}
        for id, stored in (("default", None), ("stored", True))
    ]
    found = results(server.client, ran(server.client, lines, "/v1/responses")["output_file_id"])
    ids = {id: each["response"]["body"]["id"] for id, each in found.items()}
    statuses = {id: server.client.get(f"/v1/responses/{response}").status_code for id, response in ids.items()}
    assert statuses == {"default": 404, "stored": 200}


def test_a_batch_without_its_input_fails(server: RunningServer) -> None:
    uploaded = upload(server.client, jsonl([line("a")]))["id"]
    (server.folder / "files" / "contents" / uploaded).unlink()
    batch = ended(server.client, server.client.post("/v1/batches", json=wanted(uploaded)).json()["id"])
    assert (batch["status"], error_codes(batch)) == ("failed", ["file_not_found"])


def test_a_key_has_a_limit_of_open_batches(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genai_server.store.batches.MAX_OPEN", 1)
    id = begin(server.client, [line("a", "count 400; delay 0.05")])
    second = server.client.post("/v1/batches", json=wanted(upload(server.client, b"{}")["id"]))
    assert refusal(second)[:2] == (429, "rate_limit_exceeded")
    server.client.post(f"/v1/batches/{id}/cancel")
    ended(server.client, id)


def test_batch_gives_its_places_to_other_requests_and_continues(tmp_path: Path) -> None:
    with serving(tmp_path, GENAI_MAX_BATCH_SIZE="2") as server:
        # The first two take seconds.
        lengths = {"0": 60, "1": 60, "2": 9}
        batch = begin(server.client, [line(id, f"delay 0.01; count {length}") for id, length in lengths.items()])
        wait_until(lambda: _present(server) == {("decode", True)})
        answer = server.client.post(CHAT, json=line("", "say hello", n=2)["body"])
        assert [choice["message"]["content"] for choice in answer.json()["choices"]] == ["hello"] * 2
        assert get(server.client, batch)["request_counts"]["completed"] == 0
        found = ended(server.client, batch)
        assert {
            id: each["response"]["body"]["choices"][0]["message"]["content"]
            for id, each in results(server.client, found["output_file_id"]).items()
        } == {id: ", ".join(f"{number + 1}" for number in range(length)) for id, length in lengths.items()}
        assert found["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        wait_until(lambda: scrape(server).value("background_pauses_total") >= 2)


def _present(server: RunningServer) -> set[tuple[str, bool]]:
    """The phases of the requests in the engine, and whether they are of the background."""
    data = server.client.get("/v1/requests").json()["data"]
    return {(entry["phase"], entry["background"]) for entry in data}
