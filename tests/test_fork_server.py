"""Servers of tests that are forked from a process that has imported the server."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.fork_server import COMMAND, ForkedProcess, fork_server
from tests.running_server import clean_environment, run_command


def test_a_command_has_its_own_environment_folder_and_status(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PORT=wrong\n")
    done = run_command("serve", environment=clean_environment(), cwd=tmp_path)
    assert done.returncode == 2
    assert "PORT" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no server is forked")
def test_a_signal_that_ends_a_forked_process_is_its_status(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b") as log:
        arguments, files = ["serve", "--port", "0"], [log.fileno()] * 3
        process = fork_server().start(COMMAND, arguments, clean_environment(), tmp_path, files)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL


def test_ended_fork_server_is_a_failure() -> None:
    with pytest.raises(ChildProcessError):
        ForkedProcess([], os.open(os.devnull, os.O_RDONLY))
