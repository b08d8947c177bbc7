"""scripts/check_gpu.py with the demo model on the CPU: what it reports, and that it leaves nothing running."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.running_server import DEMO, PATIENCE, ROOT, clean_environment, running_after, wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc"),
    pytest.mark.timeout(300),
]
CPU = ("--device", "cpu")


def started(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "scripts/check_gpu.py", "--out", str(folder), *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, text=True)


def results(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The results so far, by configuration and step."""
    file = folder / "results.json"
    found = json.loads(file.read_text(encoding="utf-8"))["results"] if file.exists() else []
    return {(result["configuration"], result["step"]): result for result in found}


def test_each_configuration_is_compared_with_the_first(tmp_path: Path) -> None:
    one_thread = "GENAI_THREADS=1,GENAI_MAX_LENGTH=1000"
    configurations = [f"alone={DEMO}:generator:{one_thread}", f"all={DEMO}:auto:{one_thread}"]
    process = started(tmp_path, *CPU, "--steps", "greedy,speed 1,kill", *configurations)
    printed, _ = process.communicate()
    found = results(tmp_path)
    assert {result["status"] for result in found.values()} == {"ok"}, printed
    assert process.returncode == 0
    assert found["all", "start"]["message"] == "batched"
    assert found["all", "greedy"]["figures"]["compared_with"] == "alone"
    assert found["all", "speed 1"]["figures"]["decode_tokens_per_second"] > 0
    assert found["all", "speed 1"]["figures"]["output_tokens"] == 192
    assert found["all", "kill"]["figures"]["seconds_to_answer"] > 0
    assert (tmp_path / "alone.log").stat().st_size > 0
    assert printed.splitlines()[-1].startswith("all ")


def test_a_server_that_does_not_start_fails_with_its_reason(tmp_path: Path) -> None:
    process = started(tmp_path, *CPU, f"none={tmp_path / 'nothing'}:auto")
    process.communicate()
    assert process.returncode == 1
    assert "nothing" in results(tmp_path)["none", "start"]["message"]


def test_time_that_is_over_is_told_for_each_step(tmp_path: Path) -> None:
    process = started(tmp_path, *CPU, "--seconds", "1", f"late={DEMO}:auto")
    process.communicate()
    assert process.returncode == 0
    assert results(tmp_path)["late", "start"]["status"] == "not reached"


def test_sigterm_leaves_results_and_no_process(tmp_path: Path) -> None:
    process = started(tmp_path, "--device", "cpu", f"ended={DEMO}:auto:GENAI_THREADS=1")
    try:
        wait_until(lambda: ("ended", "greedy") in results(tmp_path))
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert len(family) > 1
    assert running_after(family, PATIENCE) == []
    assert results(tmp_path)["ended", "greedy"]["status"] == "ok"
