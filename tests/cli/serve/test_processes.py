"""Several API processes: their start on a busy machine, and their replacement."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running_server import PATIENCE, RunningServer, api_processes, has_ended, run_server, wait_until

# Several servers are started, one after another.
pytestmark = pytest.mark.timeout(300)
WORKERS = ("--device", "scripted", "--workers", "2")
# A start that takes longer than uvicorn's own timeout for a worker's reply.
SLOW_START = """import sys, time
if "multiprocessing.spawn" in " ".join(sys.orig_argv):
    time.sleep(7)
"""
# A server whose parent process waits less long, but longer than a start takes on a busy machine.
HASTY = """import sys
from genai_server.cli import main
from genai_server.cli.serve import server_lifetime
if __name__ == "__main__":
    server_lifetime._HEALTH_CHECK_TIMEOUT = 15
    sys.exit(main(["serve", *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("workers"), *WORKERS, seconds=120) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_start_longer_than_uvicorns_health_check_is_awaited_or_stopped(tmp_path: Path, is_stopped: bool) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_START, encoding="utf-8")
    settings = {"PYTHONPATH": str(tmp_path)}
    with run_server(tmp_path, *WORKERS, settings=settings, seconds=90, ready=not is_stopped) as server:
        if is_stopped:
            wait_until(lambda: len(api_processes(server)) == 2)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE) == 0
        else:
            assert "died" not in server.log()
            assert server.chat("say x").json()["content"] == "x"


@pytest.mark.parametrize("module", ["genai_server.cli.serve.server_lifetime", "genai_server.supervisor.process"])
def test_the_parent_of_api_processes_and_the_supervisor_import_no_web_framework(module: str) -> None:
    program = f"import sys, {module}; sys.exit('fastapi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.slow
def test_a_killed_api_process_is_replaced(server: RunningServer) -> None:
    wait_until(lambda: len(api_processes(server)) == 2)
    (victim, survivor) = api_processes(server)
    victim.send_signal(signal.SIGKILL)
    wait_until(lambda: has_ended(victim))
    wait_until(lambda: len(api_processes(server)) == 2)
    assert survivor in api_processes(server)
    wait_until(server.is_ready)


@pytest.mark.slow
def test_an_api_process_that_hangs_is_replaced(tmp_path: Path) -> None:
    script = tmp_path / "hasty.py"
    script.write_text(HASTY, encoding="utf-8")
    with run_server(tmp_path, *WORKERS, program=[sys.executable, str(script)], seconds=90) as server:
        wait_until(lambda: server.log().count("Application startup complete") == 2)
        hanging = api_processes(server)[0]
        hanging.suspend()
        wait_until(lambda: has_ended(hanging))
        wait_until(lambda: len(api_processes(server)) == 2)
