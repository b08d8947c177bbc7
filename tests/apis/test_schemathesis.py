"""schemathesis against the server's OpenAPI description: no body that it generates causes an unexpected answer.

Bodies are random. Those with an extreme or invalid value at each place in turn (phase `coverage`) are left out: most
extreme ones are refused for the same reason, such as all 445 of `/v1/chat/completions` (`--mode positive`), and
scripts/fuzz.py (tests/load) sends invalid ones to the same endpoints. SCHEMATHESIS_EXAMPLES sets the number of
examples; then nothing is left out.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_server import SCRIPTED, RunningServer
from tests.server_here import run_here

EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "")
CHOSEN = ["--phases", "examples,coverage,fuzzing,stateful" if EXAMPLES else "examples,fuzzing,stateful"]
CHOSEN += ["--max-examples", EXAMPLES or "3"]
# Admin endpoints, and the one that would contact a hub on the internet.
BY_OPERATORS = "/admin/|^/api/pull$"


def _run(server: RunningServer, folder: Path, *options: str) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", *options, *CHOSEN]
    command += ["--wait-for-schema", "60"]
    command += ["--exclude-checks", "positive_data_acceptance", "--seed", "1", "--no-color"]
    # schemathesis warns of bodies that it cannot send to a server that accepts only JSON.
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]
    assert server.client.get("/readyz").status_code == 200


@pytest.mark.timeout(400)
def test_no_body_gets_an_undocumented_response(scripted: RunningServer, tmp_path: Path) -> None:
    _run(scripted, tmp_path, "--exclude-path-regex", BY_OPERATORS)


@pytest.mark.timeout(400)
def test_no_admin_body_gets_an_undocumented_response(own_folder: Path) -> None:
    with run_here(own_folder, *SCRIPTED) as server:
        _run(server, own_folder, "--include-path-regex", "/admin/")
