"""What stays up when something breaks or hangs, seen from outside, on real processes."""

import json
import os
import signal
import threading
from pathlib import Path

import httpx
import psutil
import pytest

from tests.running_server import RunningServer, run_server, wait_until


def test_while_an_engine_holds_pythons_lock_health_and_other_devices_go_on(scripted: RunningServer) -> None:
    held: list[dict[str, object]] = []
    holder = threading.Thread(
        target=lambda: held.append(scripted.chat("hold 3 at 0; say done", device="scripted:0").json())
    )
    holder.start()
    wait_until(lambda: scripted.device("scripted:0")["running"] == 1)
    answered = 0
    with scripted.stream("count 50", device="scripted:1") as events:
        assert json.loads(list(events)[-1])["finish_reason"] == "stop"
    while holder.is_alive() and answered < 20:
        assert scripted.client.get("/healthz").status_code == 200
        answered += 1
    assert holder.is_alive(), "the engine was not held for as long as 21 answers took"
    holder.join(20)
    assert held[0]["content"] == "done"


@pytest.mark.parametrize("path", ["/v1/chat/stream", "/v1/chat/completions"])
def test_kill_9_on_the_engine_ends_its_streams_with_an_error_and_the_engine_comes_back(
    own_folder: Path, path: str
) -> None:
    fields = {"stream": True} if path.endswith("completions") else {}
    with run_server(own_folder, "--device", "scripted") as server:
        pid = server.device("scripted")["pid"]
        with server.stream("delay 0.02; count 1000", path=path, **fields) as events:
            reader = iter(events)
            next(reader)
            os.kill(pid, signal.SIGKILL)
            last = json.loads(list(reader)[-1])
        assert last["error"]["code"] == "engine_died"
        assert server.client.get("/readyz").status_code == 503
        wait_until(server.is_ready)
        assert server.chat("say back").json()["content"] == "back"
        device = server.device("scripted")
        assert device["restarts"] == 1
        assert device["pid"] != pid


def test_a_terminated_device_is_not_reopened_by_a_crash(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted") as server:
        server.options(terminate_session="1")
        os.kill(server.device("scripted")["pid"], signal.SIGKILL)
        wait_until(lambda: server.device("scripted")["restarts"] == 1 and server.device("scripted")["state"] == "ready")
        assert server.chat("say x").json()["error"]["code"] == "session_terminated"
        server.options(terminate_session="0")
        assert server.chat("say x").json()["content"] == "x"


def test_a_crash_fails_every_waiting_request_exactly_once(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted", "--max-batch-size", "2") as server:
        statuses: list[int] = []
        scripts = ["delay 0.02; count 1000"] * 5
        threads = [threading.Thread(target=lambda s=s: statuses.append(server.chat(s).status_code)) for s in scripts]
        for thread in threads:
            thread.start()
        wait_until(lambda: server.device("scripted")["waiting"] == 3)
        os.kill(server.device("scripted")["pid"], signal.SIGKILL)
        for thread in threads:
            thread.join(10)
        assert statuses == [500] * 5


def test_a_step_that_crashes_the_process_is_an_engine_death_too(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted") as server:
        with server.stream("crash at 3; count 10") as events:
            found = [json.loads(event) for event in events]
        assert [event.get("token") for event in found[:-1]] == ["1", ",", " "]
        assert found[-1]["error"]["code"] == "engine_died"
        wait_until(server.is_ready)


def test_several_api_processes_share_one_engine_and_see_each_others_requests(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted", "--workers", "2") as server:
        pids = {server.device("scripted")["pid"] for _ in range(10)}
        assert len(pids) == 1
        with server.stream("delay 0.02; count 1000") as events:
            reader = iter(events)
            next(reader)
            name = events.response.headers["x-request-id"]
            # Fresh connections reach either process; both know the request, for the engine does.
            for _ in range(6):
                with server.client.stream("GET", "/healthz", headers={"connection": "close"}) as response:
                    response.read()
                    assert response.json()["devices"]["scripted"]["running"] == 1
            assert server.options(terminate_session="1", request_id=name).status_code == 200
            assert json.loads(list(reader)[-1])["finish_reason"] == "terminated"


def test_running_answers_go_on_when_the_server_is_asked_to_stop(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted") as server:
        with server.stream("delay 0.02; count 30") as events:
            reader = iter(events)
            next(reader)
            server.process.send_signal(signal.SIGTERM)
            last = json.loads(list(reader)[-1])
        assert last["finish_reason"] == "stop"
        assert server.process.wait(10) == 0


def test_what_outlasts_the_drain_ends_with_an_error(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted", "--drain-timeout", "1") as server:
        plain: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: plain.append(server.chat("delay 0.02; count 1000")))
        asking.start()
        with server.stream("delay 0.02; count 1000") as events:
            next(iter(events))
            wait_until(lambda: server.device("scripted")["running"] == 2)
            server.process.send_signal(signal.SIGTERM)
            last = json.loads(list(events)[-1])
        asking.join(10)
        assert last["error"]["code"] == "server_stopping"
        assert plain[0].status_code == 503
        assert plain[0].json()["error"]["code"] == "server_stopping"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_nothing_is_left_behind_when_the_server_is_killed(own_folder: Path, workers: str) -> None:
    temporary = {"TMPDIR": str(own_folder)}
    with run_server(own_folder, "--device", "scripted", "--workers", workers, settings=temporary) as server:
        assert any(path.name.startswith("genai-server-") for path in own_folder.iterdir())
        family = psutil.Process(server.process.pid).children(recursive=True)
        assert len(family) >= int(workers)
        server.process.kill()
        _, alive = psutil.wait_procs(family, timeout=15)
        assert alive == []
        assert [path.name for path in own_folder.iterdir() if path.name.startswith("genai-server-")] == []
