"""schemathesis against the server's own description of itself: no surprise for any body that it can think of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_server import RunningServer

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
def test_no_body_meets_an_undocumented_answer(scripted: RunningServer, tmp_path: Path) -> None:
    _run(scripted, tmp_path, "--exclude-path-regex", "/admin/")
    assert scripted.client.get("/readyz").status_code == 200


@pytest.mark.timeout(250)
def test_no_body_meets_an_undocumented_answer_of_the_admin(scripted: RunningServer, tmp_path: Path) -> None:
    try:
        _run(scripted, tmp_path, "--include-path-regex", "/admin/")
    finally:
        scripted.options(terminate_session="0")
        scripted.options(enable_profiling="0")
        for session in scripted.client.get("/v1/admin/profiles").json()["data"]:
            scripted.client.delete(f"/v1/admin/profiles/{session['id']}")
