"""Processes that are killed while they store prefixes leave nothing that another one could misread."""

import sys
from pathlib import Path

import pytest

from tests.running_server import run_python


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks processes of one thread")
def test_a_kill_in_mid_write_costs_a_miss(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("killed_writer.py"))
    num_in_mid_write = run_python(script, str(tmp_path / "prefixes"), "60")
    assert int(num_in_mid_write) > 0
