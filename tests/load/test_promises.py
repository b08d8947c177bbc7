"""The soak, invalid requests, hostile grammars, images and recordings, each in a short form.

docs/measuring.md names the long forms. Limits are wide where they depend on the machine: for memory, because caches
still fill up in so short a time, and for /healthz, because other programs take its cores.
"""

import sys

import pytest

from tests.running_server import run_python

pytestmark = [pytest.mark.soak, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "command",
    [
        "soak --minutes 0.1 --growth 0.25 --pulse 30",
        "fuzz requests --count 300 --slack 10",
        "fuzz grammars --count 60",
        "fuzz images --count 200 --slack 120",
        "fuzz recordings --count 200",
    ],
)
def test_each_request_has_one_answer_and_nothing_hostile_ends_a_process(command: str) -> None:
    script, *options = command.split()
    assert "broken promises: none" in run_python(f"scripts/{script}.py", *options, "--seed", "1")
