"""schemathesis against the server's own description of itself: no surprise for any body that it can think of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_server import SCRIPTED, RunningServer, run_server

EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "20")


def _run(server: RunningServer, folder: Path, *options: str) -> None:
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{server.url}/openapi.json",
        "--max-examples",
        EXAMPLES,
    ]
    command += ["--exclude-checks", "positive_data_acceptance", "--seed", "1", "--no-color", *options]
    # What it cannot send to a server that takes JSON alone, it warns of.
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]


@pytest.mark.timeout(250)
def test_no_body_meets_an_undocumented_answer(own_folder: Path) -> None:
    with run_server(own_folder, *SCRIPTED) as server:
        _run(server, own_folder, "--exclude-path-regex", "/admin/")
        assert server.client.get("/readyz").status_code == 200


@pytest.mark.timeout(250)
def test_no_body_meets_an_undocumented_answer_of_the_admin(own_folder: Path) -> None:
    with run_server(own_folder, *SCRIPTED) as server:
        _run(server, own_folder, "--include-path-regex", "/admin/")
