"""What a process asks of its system, each in a process of its own."""

import subprocess
import sys

import pytest

FILES = """
import resource
from genai_server.cli.process_limits import raise_file_limit
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), hard)
"""


def output(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_as_many_files_may_be_open_as_the_hard_limit_allows() -> None:
    soft, new_hard, hard = output(FILES).split()
    assert soft == new_hard == hard
