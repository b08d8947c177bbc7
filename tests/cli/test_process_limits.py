"""What a process asks of its system, each in a process of its own."""

import subprocess
import sys

import pytest

LARGE_BLOCKS = """
from genai_server.cli.process_limits import give_back_large_blocks
{call}
def own():
    line = next(line for line in open("/proc/self/smaps_rollup") if line.startswith("Pss_Anon"))
    return int(line.split()[1])
del_first = bytearray(20 << 20); del del_first  # by which glibc raises its threshold
kept, before = [], own()
for _ in range(20):
    block = bytearray(1 << 20)
    kept.append(bytearray(100))  # so that the heap cannot shrink from its end
    blocks = [bytearray(300_000) for _ in range(20)]
    kept.append(bytearray(1000))
    del block, blocks
print(own() - before)
"""
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


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps them")
def test_large_blocks_go_back_to_the_system() -> None:
    kibibytes = int(output(LARGE_BLOCKS.format(call="give_back_large_blocks()")))
    assert kibibytes < 2048
    assert int(output(LARGE_BLOCKS.format(call=""))) > kibibytes


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_as_many_files_may_be_open_as_the_hard_limit_allows() -> None:
    soft, new_hard, hard = output(FILES).split()
    assert soft == new_hard == hard
