"""The library's own loop, as the benchmark runs it."""

import json
import subprocess
import sys

from genai_server.system.resources import usable_cores
from tests.running_server import DEMO


def bare_loop(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "genai_server.engine.bare_loop", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def test_each_run_has_the_requested_tokens_in_order_of_time() -> None:
    result = bare_loop(
        str(DEMO), "--threads", "0", "--prompt-tokens", "16", "32", "--output-tokens", "4", "--runs", "2"
    )
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["threads"] == usable_cores()
    assert list(found["lengths"]) == ["16", "32"]
    for run in found["lengths"]["16"] + found["lengths"]["32"]:
        moments = [run["sent"], run["prefilled"], *run["tokens"]]
        assert len(run["tokens"]) == 4
        assert moments == sorted(moments)


def test_invalid_directory_ends_it_with_the_reason() -> None:
    result = bare_loop("/none")
    assert result.returncode != 0
    assert "model directory /none does not exist" in result.stderr.splitlines()[-1]
