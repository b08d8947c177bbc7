"""The first steps of child processes."""

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from genai_server.system.processes import own_folder, start_module

CHILD = """
import sys
from genai_server.system.processes import ignore_group_signals
print("started", flush=True)
sys.stdin.readline()
ignore_group_signals()
print("ignores", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot block signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_group_never_reach_a_starting_child(tmp_path: Path, number: int) -> None:
    (tmp_path / "child.py").write_text(CHILD, encoding="utf-8")
    process = start_module("child", {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert process.stdin is not None
    assert process.stdout is not None
    for state in (b"started\n", b"ignores\n"):
        assert process.stdout.readline() == state
        process.send_signal(number)
        process.stdin.write(b"\n")
        process.stdin.flush()
    process.communicate()
    assert process.returncode == 0
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_folder_has_the_name_of_its_process(tmp_path: Path) -> None:
    assert own_folder(tmp_path, "images") == tmp_path / f"images-{os.getpid()}"
    assert not list(tmp_path.iterdir())


def test_folders_of_dead_processes_are_removed(tmp_path: Path) -> None:
    gone = psutil.Process().pid
    while psutil.pid_exists(gone):
        gone += 1
    for name in (f"a-{gone}", f"a-{os.getpid()}", f"a-{os.getppid()}", "a-x", f"b-{gone}", "metrics"):
        (tmp_path / name / "inner").mkdir(parents=True)
    own_folder(tmp_path, "a")
    left = {"a-x", f"a-{os.getppid()}", f"b-{gone}", "metrics"}
    assert {path.name for path in tmp_path.iterdir()} == left
