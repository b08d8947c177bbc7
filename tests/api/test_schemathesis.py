"""schemathesis against the server's own description of itself: no surprise for any body that it can think of.

Wrong values at every place of a body are the larger half of what it sends. They are left to scripts/fuzz.py
(tests/load), which sends them to the same endpoints, and to a share of what is drawn by chance here. Right values at
every place are left out where another endpoint takes the same body or all of its fields, and for the admin endpoints.
SCHEMATHESIS_EXAMPLES says how many examples to draw; then nothing is left out.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_server import SCRIPTED, RunningServer
from tests.server_here import run_here

EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "")
CHANCE = ["--max-examples", EXAMPLES or "2"]
# Admin endpoints, and the one that would ask a hub on the internet.
BY_OPERATORS = "/admin/|^/api/pull$"
# Other names of an endpoint, and those that take the body of another or a part of it.
ALIKE = (
    r"^/(tokenize|detokenize|apply-template|v1/chat/stream|v1/chat/completions/render|v1/completions/render"
    r"|v1/responses/(input_tokens|compact)|v1/messages/count_tokens|v2/rerank)$"
)


def _run(server: RunningServer, folder: Path, *options: str) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", *options]
    command += ["--exclude-checks", "positive_data_acceptance", "--seed", "1", "--no-color"]
    # What it cannot send to a server that takes JSON alone, it warns of.
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]
    assert server.client.get("/readyz").status_code == 200


@pytest.mark.timeout(400)
def test_no_body_meets_an_undocumented_answer(scripted: RunningServer, tmp_path: Path) -> None:
    systematic = [] if EXAMPLES else ["--mode", "positive"]
    left_out = BY_OPERATORS if EXAMPLES else f"{BY_OPERATORS}|{ALIKE}"
    _run(scripted, tmp_path, "--exclude-path-regex", left_out, "--phases", "coverage", *systematic)
    by_chance = ["--phases", "examples,fuzzing,stateful", *CHANCE]
    _run(scripted, tmp_path, "--exclude-path-regex", BY_OPERATORS, *by_chance)


@pytest.mark.timeout(400)
def test_no_body_meets_an_undocumented_answer_of_the_admin(own_folder: Path) -> None:
    with run_here(own_folder, *SCRIPTED) as server:
        phases = [] if EXAMPLES else ["--phases", "examples,fuzzing,stateful"]
        _run(server, own_folder, "--include-path-regex", "/admin/", *phases, *CHANCE)
