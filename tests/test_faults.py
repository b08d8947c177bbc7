"""What stays available when something breaks or hangs, on real processes."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.running_server import (
    PATIENCE,
    SCRIPTED,
    RunningServer,
    api_processes,
    body,
    command_line,
    has_ended,
    last_event,
    run_server,
    running_after,
    wait_until,
)
from tests.server_here import run_here, starts_held


@pytest.fixture(scope="module")
def hanging_orphan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[psutil.Process]:
    """An engine that hangs in native code, and whose server was killed."""
    folder = tmp_path_factory.mktemp("orphan")
    with run_server(folder, "--device", "scripted", "--step-timeout", "0") as server:
        engine = psutil.Process(server.device("scripted")["pid"])
        with contextlib.suppress(httpx.TransportError), server.begun("hold 600 at 1; say x"):
            server.process.kill()
        server.process.wait(PATIENCE)
    yield engine
    if not has_ended(engine):
        engine.kill()


@pytest.mark.slow
def test_engine_that_holds_the_gil_delays_no_other(own_folder: Path) -> None:
    with run_server(own_folder, *SCRIPTED) as server, ThreadPoolExecutor(1) as thread:
        # Held until the engine is killed, however long the other requests take.
        held = thread.submit(server.chat, "hold 600 at 1; say done", device="scripted:0")
        wait_until(lambda: server.device("scripted:0")["running"] == 1)
        with server.stream("count 50", device="scripted:1") as events:
            assert last_event(iter(events))["finish_reason"] == "stop"
        assert [server.client.get("/healthz").status_code for _ in range(20)] == [200] * 20
        assert not held.done()
        os.kill(server.device("scripted:0")["pid"], signal.SIGKILL)
        assert held.result().json()["error"]["code"] == "engine_died"


def test_killed_engine_ends_its_streams_and_is_restarted(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted") as server:
        pid = server.device("scripted")["pid"]
        with (
            server.begun("delay 0.02; count 1000", 4) as ours,
            server.begun("delay 0.02; count 1000", 4, path="/v1/chat/completions", stream=True) as openais,
            starts_held(),
        ):
            os.kill(pid, signal.SIGKILL)
            assert [last_event(reader)["error"]["code"] for reader in (ours, openais)] == ["engine_died"] * 2
            assert server.client.get("/readyz").status_code == 503
            assert server.client.get("/livez").status_code == 200  # the engine is being restarted
        wait_until(server.is_ready)
        assert server.chat("say back").json()["content"] == "back"
        device = server.device("scripted")
        assert device["restarts"] == 1
        assert device["pid"] != pid


def test_a_terminated_device_is_not_reopened_by_a_crash(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted") as server:
        server.options(terminate_session="1")
        os.kill(server.device("scripted")["pid"], signal.SIGKILL)
        wait_until(lambda: server.device("scripted")["restarts"] == 1 and server.device("scripted")["state"] == "ready")
        assert server.chat("say x").json()["error"]["code"] == "session_terminated"
        server.options(terminate_session="0")
        assert server.chat("say x").json()["content"] == "x"


def test_crash_fails_started_answers_only(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted", "--max-batch-size", "1") as server:
        answers: list[httpx.Response] = []
        with server.begun("delay 0.02; count 1000") as reader:
            threads = [threading.Thread(target=lambda n=n: answers.append(server.chat(f"say {n}"))) for n in "abc"]
            for thread in threads:
                thread.start()
            wait_until(lambda: server.device("scripted")["waiting"] == 3)
            os.kill(server.device("scripted")["pid"], signal.SIGKILL)
            assert last_event(reader)["error"]["code"] == "engine_died"
        for thread in threads:
            thread.join(90)
        assert sorted(answer.json()["content"] for answer in answers) == ["a", "b", "c"]


def test_engine_whose_runner_fails_every_pass_is_restarted(own_folder: Path) -> None:
    with run_here(own_folder, "--device", "scripted") as server:
        scripts = ("break at 1; count 9", "say a", "say b")
        assert {server.chat(script).json()["error"]["code"] for script in scripts} == {"runner_failed"}
        wait_until(lambda: server.device("scripted")["restarts"] == 1 and server.device("scripted")["state"] == "ready")
        assert server.chat("say back").json()["content"] == "back"


@pytest.mark.slow
def test_hung_engine_is_replaced_and_other_devices_continue(own_folder: Path) -> None:
    devices = "scripted:0,scripted:1"
    with run_server(own_folder, "--device", devices, "--step-timeout", "10") as server:
        with (
            server.begun("delay 0.02; count 1000", device="scripted:0") as hanging,
            server.stream("delay 0.02; count 70", device="scripted:1") as other,
        ):
            # The GIL is held: no thread of the engine runs.
            held: list[httpx.Response] = []
            holder = threading.Thread(target=lambda: held.append(server.chat("hold 600 at 1", device="scripted:0")))
            holder.start()
            assert last_event(hanging)["error"]["code"] == "engine_hung"
            assert last_event(iter(other))["finish_reason"] == "stop"
        holder.join(90)
        assert not holder.is_alive()
        assert (held[0].status_code, held[0].json()["error"]["code"]) == (500, "engine_hung")
        wait_until(lambda: server.device("scripted:0")["restarts"] == 1)
        wait_until(lambda: server.device("scripted:0")["state"] == "ready")
        assert "hung and was killed: a step of 1 tokens has not ended for 1" in server.log()
        assert server.chat("say x", device="scripted:0").json()["content"] == "x"
        assert server.device("scripted:1")["restarts"] == 0


@pytest.mark.slow
def test_crash_loop_is_shown_by_readyz_and_healthz_and_ends(own_folder: Path) -> None:
    with run_server(own_folder, "--device", "scripted", "--max-restarts", "1") as server:
        assert server.chat("crash at 0").json()["error"]["code"] == "engine_died"
        wait_until(lambda: server.device("scripted")["state"] == "failed")
        given_up = "given up after 1 restarts in a row (GENAI_MAX_RESTARTS)"
        reason = f"failed ({given_up}: the engine process died, exit status 70)"
        answer = server.client.get("/readyz")
        expected = {"reason": f"device scripted is {reason}", "devices": {"scripted": reason}}
        assert (answer.status_code, answer.json()) == (503, expected | {"status": "not ready"})
        assert server.device("scripted")["error"] in reason
        assert server.client.get("/livez").status_code == 503
        assert server.chat("say x").json()["error"]["code"] == "no_engine_ready"
        assert server.process.poll() is None


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server for tests that crash its engine; only a few, because the pause before a restart doubles each time."""
    with run_server(tmp_path_factory.mktemp("mortal"), "--device", "scripted") as server:
        yield server


@pytest.mark.parametrize("fields", [{}, {"stream": True}], ids=["whole", "streamed"])
def test_answer_with_a_stop_string_survives_an_engine_crash(mortal: RunningServer, fields: dict[str, object]) -> None:
    restarts = mortal.device("scripted")["restarts"]
    # The engine dies in the pass after the stop string: it never reports the end of the answer.
    asked = body("say one. two; crash at 4", stop=".", **fields)
    for _ in range(5):  # an engine that is slow between two passes is cancelled before it crashes
        answer = mortal.client.post("/v1/chat/completions", json=asked)
        assert (answer.status_code, "error" in answer.text) == (200, False), answer.text
        assert answer.text.count('"finish_reason":"stop"') == 1
        assert "two" not in answer.text
        with contextlib.suppress(AssertionError):
            wait_until(lambda: mortal.device("scripted")["restarts"] > restarts, 8.0)
            break
    wait_until(lambda: mortal.device("scripted")["restarts"] > restarts and mortal.is_ready())


def test_api_processes_share_an_engine_and_see_all_requests(workers: RunningServer) -> None:
    pids = {workers.device("scripted")["pid"] for _ in range(10)}
    assert len(pids) == 1
    with workers.stream("delay 0.02; count 1000") as events:
        reader = iter(events)
        next(reader)
        name = events.response.headers["x-request-id"]
        # New connections reach either process; both know the request, because the engine lists it.
        for _ in range(6):
            with workers.client.stream("GET", "/healthz", headers={"connection": "close"}) as response:
                response.read()
                assert response.json()["devices"]["scripted"]["running"] == 1
        assert workers.options(terminate_session="1", request_id=name).status_code == 200
        assert last_event(reader)["finish_reason"] == "terminated"


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--workers", "2"], ["--reload"]], ids=["one", "workers", "reload"])
def test_nothing_is_left_when_the_server_is_killed(own_folder: Path, short_folder: Path, options: list[str]) -> None:
    temporary = {"TMPDIR": str(short_folder)}
    with run_server(own_folder, "--device", "scripted", *options, settings=temporary) as server:
        assert any(path.name.startswith("genai-server-") for path in short_folder.iterdir())
        assert server.chat("say 7", structured_outputs={"regex": "7"}).status_code == 200
        family = psutil.Process(server.process.pid).children(recursive=True)
        assert len(family) >= (3 if options else 2)
        assert any("genai_server.grammar_checker.compiler" in command_line(process) for process in family)
        server.process.kill()
        assert running_after(family, PATIENCE) == []
        assert [path.name for path in short_folder.iterdir() if path.name.startswith("genai-server-")] == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere native code that hangs is not ended with its parent")
def test_engine_hung_in_native_code_ends_soon_after_its_parent(hanging_orphan: psutil.Process) -> None:
    wait_until(lambda: has_ended(hanging_orphan))


@pytest.mark.slow
def test_killed_api_processes_are_replaced_and_leave_no_requests(workers: RunningServer) -> None:
    engine = workers.device("scripted")["pid"]
    killed = api_processes(workers)
    assert len(killed) == 2
    with contextlib.suppress(httpx.TransportError), workers.stream("delay 0.02; count 1000") as events:
        next(iter(events))
        for process in killed:
            process.kill()
        list(events)
    wait_until(lambda: len(set(api_processes(workers)) - set(killed)) == 2)
    wait_until(lambda: workers.is_ready() and workers.idle("scripted"))
    assert workers.device("scripted")["pid"] == engine
    assert workers.chat("say x").json()["content"] == "x"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("options", [[], ["--workers", "2"]], ids=["one", "workers"])
def test_signal_to_the_process_group_drains_the_server(own_folder: Path, options: list[str], number: int) -> None:
    with run_server(own_folder, "--device", "scripted", *options) as server:
        with server.begun("delay 0.02; count 20") as reader:
            for child in psutil.Process(server.process.pid).children(recursive=True):
                os.kill(child.pid, number)
            os.kill(server.process.pid, number)
            assert last_event(reader)["finish_reason"] == "stop"
        assert server.process.wait(PATIENCE) == 0
