"""Batches outlive the processes that run them: each request ends exactly once, whatever ends when."""

import json
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.apis.batches.inputs import CHAT, begin, ended, get, jsonl, line, num_running, results
from tests.running_server import RunningServer, api_processes, has_ended, run_server, wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")

NUM_LINES = 80
_WRONG = range(0, NUM_LINES, 10)
# Requests at once; each takes some 0.1 s.
AT_ONCE = 4
SETTINGS = {"GENAI_DEVICE": "scripted", "GENAI_MAX_BATCH_SIZE": f"{AT_ONCE}", "GENAI_LOG_LEVEL": "debug"}
LINES = [line(f"{n}", f"say {n}; delay 0.02", max_tokens=-1 if n in _WRONG else 9) for n in range(NUM_LINES)]
FAILED = {f"{number}" for number in _WRONG}


def settings(folder: Path) -> dict[str, str]:
    return {**SETTINGS, "GENAI_FILES_DIR": str(folder / "files")}


def num_answered(server: RunningServer) -> int:
    return server.log().count("path=/v1/chat/completions status=200")


def require_each_once(server: RunningServer, batch: dict[str, Any]) -> set[str]:
    """Fails unless each request of LINES has ended once, and as it should; returns the ids of the results."""
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": NUM_LINES, "completed": NUM_LINES - len(FAILED), "failed": len(FAILED)}
    succeeded = results(server.client, batch["output_file_id"])
    failed = results(server.client, batch["error_file_id"])
    assert failed.keys() == FAILED
    texts = {id: each["response"]["body"]["choices"][0]["message"]["content"] for id, each in succeeded.items()}
    assert texts == {f"{number}": f"{number}" for number in range(NUM_LINES) if f"{number}" not in FAILED}
    assert batch["usage"]["total_tokens"] == sum(
        each["response"]["body"]["usage"]["total_tokens"] for each in succeeded.values()
    )
    return {each["id"] for each in [*succeeded.values(), *failed.values()]}


def runner(server: RunningServer) -> psutil.Process:
    """The API process that runs the batch, whose lock it holds; others may open the lock's file for a moment."""
    found: list[psutil.Process] = []

    def is_found() -> bool:
        found.clear()
        for process in api_processes(server):
            with suppress(psutil.Error):  # it has just ended
                if any("/locks/" in file.path for file in process.open_files()):
                    found.append(process)
        return len(found) == 1

    wait_until(is_found)
    return found[0]


def kill(server: RunningServer) -> None:
    """Kill all processes of a server at once."""
    parent = psutil.Process(server.process.pid)
    for process in [parent, *parent.children(recursive=True)]:
        process.kill()
    server.process.wait(90)


@pytest.mark.slow
def test_killing_the_server_loses_and_repeats_no_result(tmp_path: Path) -> None:
    id, written, answered, num_kills = "", set[str](), 0, 3
    for number in range(num_kills + 1):
        with run_server(tmp_path, settings=settings(tmp_path)) as server:
            id = id or begin(server.client, LINES)
            if number == num_kills:
                batch = ended(server.client, id)
                assert written <= require_each_once(server, batch)
                answered += num_answered(server)
                break
            begun = num_answered(server)
            wait_until(lambda: num_answered(server) >= begun + 12 or get(server.client, id)["status"] == "completed")  # noqa: B023
            time.sleep(0.03 * number)  # at different moments
            kill(server)
            answered += num_answered(server)
        for path in (tmp_path / "files" / "contents").iterdir():
            *complete, _ = path.read_bytes().split(b"\n")
            written |= {found["id"] for found in map(json.loads, complete) if "id" in found}
    assert answered <= NUM_LINES - len(FAILED) + num_kills * AT_ONCE


@pytest.mark.slow
def test_another_process_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    with run_server(tmp_path, "--workers", "2", settings=settings(tmp_path)) as server:
        id = begin(server.client, LINES)
        for _ in range(2):
            begun = num_answered(server)
            running = runner(server)
            wait_until(lambda: num_answered(server) >= begun + 12)  # noqa: B023
            running.kill()
            wait_until(lambda: has_ended(running))  # noqa: B023
        with suppress(httpx.TransportError):
            server.client.get("/livez")  # the connection may have been to that process
        require_each_once(server, ended(server.client, id))
        answered = num_answered(server)
    # Were both to run it, twice as many would have been.
    assert answered <= NUM_LINES - len(FAILED) + 2 * AT_ONCE


@pytest.mark.slow
def test_batches_of_a_key_run_one_after_another(tmp_path: Path) -> None:
    lines = [line(f"{number}", "count 400; delay 0.05") for number in range(AT_ONCE)]
    with run_server(tmp_path, "--workers", "2", settings=settings(tmp_path)) as server:
        first, second = begin(server.client, lines), begin(server.client, lines)
        wait_until(lambda: get(server.client, first)["status"] == "in_progress")
        time.sleep(3)  # in which each process looks for batches
        assert get(server.client, second)["status"] == "validating"
        for id in (first, second):
            server.client.post(f"/v1/batches/{id}/cancel")
            ended(server.client, id)


def test_a_stopped_server_goes_on_with_its_batch(tmp_path: Path) -> None:
    """It does not wait for the batch's requests, and sends those that were running again."""
    lines = [line(f"{number}", "count 400; delay 0.02", max_tokens=20) for number in range(8)]
    with run_server(tmp_path, settings=settings(tmp_path)) as server:
        id = begin(server.client, lines)
        wait_until(lambda: num_running(server.client) > 0 or get(server.client, id)["status"] == "completed")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(90) == 0
    with run_server(tmp_path, settings=settings(tmp_path)) as server:
        batch = ended(server.client, id)
        assert batch["request_counts"] == {"total": 8, "completed": 8, "failed": 0}
        assert batch["usage"]["output_tokens"] == 8 * 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the largest memory of a process is read from /proc")
def test_a_large_batch_is_never_in_memory(tmp_path: Path) -> None:
    """It is uploaded, checked, begun and cancelled, which ends each of its requests."""
    num_lines, size = 20_000, 5000
    with run_server(tmp_path, settings={**settings(tmp_path), "GENAI_LOG_LEVEL": "info"}) as server:
        ended(server.client, begin(server.client, [line("first")]))  # what it has loaded stays
        before = largest_memory(server)
        source = tmp_path / "input.jsonl"
        with source.open("wb") as file:
            for number in range(num_lines):
                file.write(jsonl([line(f"{number}", "count 99; delay 0.05", user="x" * size)]))
        with source.open("rb") as file:
            response = server.client.post("/v1/files", files={"file": file}, data={"purpose": "batch"})
        body = {"input_file_id": response.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
        id = server.client.post("/v1/batches", json=body).json()["id"]
        wait_until(lambda: get(server.client, id)["status"] == "in_progress")
        server.client.post(f"/v1/batches/{id}/cancel")
        assert ended(server.client, id)["request_counts"] == {"total": num_lines, "completed": 0, "failed": num_lines}
        assert source.stat().st_size > 100_000_000
        assert largest_memory(server) - before < 50_000_000


def largest_memory(server: RunningServer) -> int:
    """The most bytes of memory that the process of the API has had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (entry,) = [text for text in status.splitlines() if text.startswith("VmHWM")]
    return int(entry.split()[1]) * 1024
