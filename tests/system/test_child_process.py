"""The first steps of child processes."""

import os
import signal
import sys
from pathlib import Path

import pytest

from genai_server.system.child_process import start_module

CHILD = """
import sys
from genai_server.system.child_process import ignore_group_signals
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
