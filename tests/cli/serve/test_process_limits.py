"""The limits that a process sets for itself, tested in a separate process."""

import sys

import pytest

from tests.running_server import run_python

PROGRAM = """
import resource
from genai_server.cli.serve.process_limits import max_files, raise_file_limit
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), hard)
for soft in (64, resource.RLIM_INFINITY):
    resource.getrlimit = lambda which: (soft, soft)
    print(max_files())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_open_file_limit_is_raised_to_the_hard_limit_and_reported() -> None:
    soft, new_hard, hard, *most = run_python("-c", PROGRAM).split()
    assert soft == new_hard == hard
    assert most == ["64", "inf"]
