"""How much freed memory returns to the system, each case in a separate process."""

import sys

import pytest

from tests.running_server import run_python

OWN = """
from genai_server.malloc import release_free_memory, release_large_blocks_at_once, share_heaps
def own():
    line = next(line for line in open("/proc/self/smaps_rollup") if line.startswith("Pss_Anon"))
    return int(line.split()[1])
"""
LARGE_BLOCKS = """
{call}
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
FREE_MEMORY = """
before = own()
blocks = [bytearray(20_000) for _ in range(4000)]
kept = blocks[::20]  # so that none of it is at the heap's end
taken = own() - before
del blocks
left = own() - before
release_free_memory()
print(taken, left, own() - before)
"""
THREADS = """
import ctypes, os, tempfile, threading
{call}
libc = ctypes.CDLL(None)
libc.fopen.restype, libc.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]
libc.malloc_info.argtypes, libc.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
started = threading.Barrier(5)
def work():
    block = bytearray(20_000)
    started.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
started.wait()
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "heaps")
    file = libc.fopen(path.encode(), b"w")
    libc.malloc_info(0, file)
    libc.fclose(file)
    print(open(path).read().count("<heap nr="))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only glibc is asked")


def output(program: str) -> str:
    return run_python("-c", OWN + program)


def test_large_blocks_go_back_to_the_system() -> None:
    kibibytes = int(output(LARGE_BLOCKS.format(call="release_large_blocks_at_once()")))
    assert kibibytes < 2048
    assert int(output(LARGE_BLOCKS.format(call=""))) > kibibytes


def test_threads_share_the_first_ones_heap() -> None:
    assert int(output(THREADS.format(call="share_heaps()"))) == 1
    assert int(output(THREADS.format(call=""))) > 1


def test_free_memory_between_used_blocks_is_returned_on_demand() -> None:
    taken, left, given_back = map(int, output(FREE_MEMORY).split())
    assert left > taken / 2
    assert given_back < taken / 4
