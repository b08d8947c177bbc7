"""Several API processes: their start on a busy machine, their replacement, and which one answers in the meantime."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.raw_http import asked
from tests.running_server import (
    RunningServer,
    api_processes,
    body,
    fork_origin,
    has_ended,
    run_server,
    wait_until,
)

# Several servers are started, one after another.
pytestmark = pytest.mark.timeout(300)
forks = pytest.mark.skipif(sys.platform != "linux", reason="API processes are forked on Linux only")
WORKERS = ("--device", "scripted", "--workers", "2")
# A start that takes longer than uvicorn's timeout for a worker's reply.
SLOW_START = """import sys, time
if "multiprocessing.forkserver" in " ".join(sys.orig_argv) or "multiprocessing.spawn" in " ".join(sys.orig_argv):
    time.sleep(7)
"""
# A server whose parent process waits only 3 s.
HASTY = """import sys
from genai_server.cli import main
from genai_server.cli.serve import processes
if __name__ == "__main__":
    processes._RESPONSE_TIMEOUT = 3
    sys.exit(main(["serve", *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("workers"), *WORKERS, seconds=120) as running:
        yield running


def origin_of(server: RunningServer) -> psutil.Process:
    origin = fork_origin(server)
    assert origin is not None
    return origin


@contextmanager
def without_api_processes(server: RunningServer) -> Iterator[None]:
    """No API process runs, and none can start: the next process that forks them hangs in its imports."""
    before = origin_of(server)
    before.kill()
    wait_until(lambda: (origin := fork_origin(server)) is not None and origin != before)
    origin = origin_of(server)
    origin.suspend()
    try:
        wait_until(lambda: refused_with(server) == "server_starting")
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            origin.resume()


def refused_with(server: RunningServer) -> str:
    """The error code for a new connection's request, or ""."""
    try:
        response = httpx.get(f"{server.url}/readyz", timeout=5)
    except httpx.TransportError:
        return ""
    code: str = response.json().get("error", {}).get("code", "")
    return code


def test_a_start_longer_than_uvicorns_health_check_is_awaited(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_START, encoding="utf-8")
    with run_server(tmp_path, *WORKERS, settings={"PYTHONPATH": str(tmp_path)}, seconds=90) as server:
        assert "died" not in server.log()
        assert server.chat("say x").json()["content"] == "x"


@forks
def test_an_api_process_needs_little_processor_time_to_start(server: RunningServer) -> None:
    processes = api_processes(server)
    assert len(processes) == 2
    # Processor time, which other processes hardly affect. A new interpreter needs as much as the origin for imports.
    *own, imports = (sum(process.cpu_times()[:2]) for process in (*processes, origin_of(server)))
    assert max(own) <= imports / 2
    assert origin_of(server).num_threads() == 1


def test_the_parent_of_api_processes_imports_no_web_framework() -> None:
    program = "import sys, genai_server.cli.serve.server_lifetime; sys.exit('fastapi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@forks
def test_requests_get_a_503_until_an_api_process_is_ready(server: RunningServer) -> None:
    with without_api_processes(server):
        refused = httpx.post(f"{server.url}/v1/chat/completions", json=body("x" * 300_000), timeout=90)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_starting"
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["connection"] == "close"
        assert refused.headers["x-request-id"]
        anthropic = httpx.post(f"{server.url}/v1/messages", json={}, timeout=90).json()
        assert (anthropic["type"], anthropic["error"]["type"]) == ("error", "overloaded_error")
        assert httpx.get(f"{server.url}/livez", timeout=90).status_code == 200
        assert httpx.get(f"{server.url}/readyz", timeout=90).status_code == 503
        malformed = asked(server, b"nonsense\r\n\r\n")
        assert (malformed.status, json.loads(malformed.body)["error"]["code"]) == (400, "invalid_http")
        upgrade = b"GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        assert asked(server, upgrade).status == 503
    wait_until(server.is_ready, 60)
    assert server.chat("say x").json()["content"] == "x"
    wait_until(lambda: len(api_processes(server)) == 2, 60)


def test_the_log_says_why_an_api_process_died(server: RunningServer) -> None:
    wait_until(lambda: len(api_processes(server)) == 2, 60)
    (victim, survivor) = api_processes(server)
    victim.send_signal(signal.SIGKILL)
    wait_until(lambda: f"API process {victim.pid} died: exit status -9: killed" in server.log())
    wait_until(lambda: len(api_processes(server)) == 2, 60)
    assert survivor in api_processes(server)
    wait_until(server.is_ready, 60)


@forks
def test_the_fork_server_has_the_pid_that_is_read() -> None:
    from multiprocessing.forkserver import _forkserver

    missing = "multiprocessing's ForkServer._forkserver_pid has gone, which cli/serve/processes.py reads"
    assert hasattr(_forkserver, "_forkserver_pid"), missing


@forks
def test_the_death_of_the_origin_replaces_all_api_processes(server: RunningServer) -> None:
    origin, before = origin_of(server), api_processes(server)
    wait_until(server.is_ready, 60)
    engine = server.device("scripted")["pid"]
    origin.kill()
    wait_until(lambda: all(has_ended(process) for process in before))
    wait_until(server.is_ready, 60)
    wait_until(lambda: len(api_processes(server)) == 2, 60)
    assert server.device("scripted")["pid"] == engine
    assert not any(process in before for process in api_processes(server))


def test_an_api_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    script = tmp_path / "hasty.py"
    script.write_text(HASTY, encoding="utf-8")
    with run_server(tmp_path, *WORKERS, program=[sys.executable, str(script)], seconds=90) as server:
        wait_until(lambda: len(api_processes(server)) == 2, 60)
        hanging = api_processes(server)[0]
        hanging.suspend()
        wait_until(lambda: f"API process {hanging.pid} died: it did not respond for 3 s" in server.log(), 40)
        wait_until(lambda: has_ended(hanging))
        wait_until(lambda: len(api_processes(server)) == 2, 60)


@forks
@pytest.mark.parametrize("is_first_start", [True, False])
def test_a_stop_ends_a_server_whose_api_processes_cannot_start(tmp_path: Path, is_first_start: bool) -> None:
    with run_server(tmp_path, *WORKERS, ready=not is_first_start, seconds=120) as server:
        if is_first_start:
            wait_until(lambda: fork_origin(server) is not None, 60)
            origin = origin_of(server)
            origin.suspend()
            wait_until(lambda: refused_with(server) == "server_starting", 60)
            server.process.send_signal(signal.SIGTERM)
            status = server.process.wait(60)
        else:
            with without_api_processes(server):
                origin = origin_of(server)
                server.process.send_signal(signal.SIGTERM)
                status = server.process.wait(60)
        assert status == 0
        wait_until(lambda: has_ended(origin))
