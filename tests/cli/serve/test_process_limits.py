"""The limits that a process sets for itself, each tested in a separate process."""

import subprocess
import sys

import pytest

FILES = """
import resource
from genai_server.cli.serve.process_limits import raise_file_limit
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), hard)
"""
MOST = """
import resource
from genai_server.cli.serve.process_limits import max_files
for soft in (64, resource.RLIM_INFINITY):
    resource.getrlimit = lambda which: (soft, soft)
    print(max_files())
"""


def output(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_open_file_limit_is_raised_to_the_hard_limit() -> None:
    soft, new_hard, hard = output(FILES).split()
    assert soft == new_hard == hard


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_existing_limit_is_reported() -> None:
    assert output(MOST).split() == ["64", "inf"]
