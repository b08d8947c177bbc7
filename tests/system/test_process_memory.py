"""Freed memory returns to the system, shown in separate processes, and full collections are rare but do happen."""

import asyncio
import gc
import sys
import weakref

import pytest

from genai_server.system.process_memory import rare_full_collections
from tests.running_server import run_python

OWN = """
from genai_server.system.process_memory import release_free_memory, release_large_blocks_at_once, share_heaps
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

glibc_only = pytest.mark.skipif(sys.platform != "linux", reason="only glibc is asked")


def output(program: str) -> str:
    return run_python("-c", OWN + program)


@glibc_only
def test_large_blocks_go_back_to_the_system() -> None:
    kibibytes = int(output(LARGE_BLOCKS.format(call="release_large_blocks_at_once()")))
    assert kibibytes < 2048
    assert int(output(LARGE_BLOCKS.format(call=""))) > kibibytes


@glibc_only
def test_threads_share_the_first_ones_heap() -> None:
    assert int(output(THREADS.format(call="share_heaps()"))) == 1
    assert int(output(THREADS.format(call=""))) > 1


@glibc_only
def test_free_memory_between_used_blocks_is_returned_on_demand() -> None:
    taken, left, given_back = map(int, output(FREE_MEMORY).split())
    assert left > taken / 2
    assert given_back < taken / 4


# full collections of cycles


class Cycle:
    """An object that references itself, so that reference counting does not free it."""

    def __init__(self) -> None:
        self.itself = self


def aged_cycle() -> "weakref.ref[Cycle]":
    """An unreachable cycle that has survived the collections of young objects, so only a full collection finds it."""
    cycle = Cycle()
    gc.collect(0)
    gc.collect(1)
    return weakref.ref(cycle)


def test_a_full_collection_comes_by_the_clock() -> None:
    async def wait_for_one() -> None:
        async with rare_full_collections(min_seconds=0.05):
            cycle = aged_cycle()
            gc.collect(1)
            async with asyncio.timeout(30):
                while cycle() is not None:  # noqa: ASYNC110 - the collector has no callback for this
                    await asyncio.sleep(0.01)

    asyncio.run(wait_for_one())


def test_memory_freed_by_a_full_collection_goes_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_for_one() -> None:
        given_back = asyncio.Event()
        monkeypatch.setattr("genai_server.system.process_memory.release_free_memory", given_back.set)
        async with rare_full_collections(min_seconds=0.05), asyncio.timeout(30):
            await given_back.wait()

    asyncio.run(wait_for_one())


def test_full_collection_is_not_triggered_by_allocations() -> None:
    async def full_collections() -> int:
        async with rare_full_collections():
            before = gc.get_stats()[2]["collections"]
            kept = [[index] for index in range(300_000)]  # many times what triggers a collection
            del kept
            return int(gc.get_stats()[2]["collections"] - before)

    assert asyncio.run(full_collections()) == 0


def test_objects_of_the_start_are_frozen_until_the_end() -> None:
    gc.unfreeze()
    before = gc.get_threshold(), gc.get_freeze_count()

    async def frozen() -> int:
        async with rare_full_collections():
            return gc.get_freeze_count()

    assert asyncio.run(frozen()) > 1000
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
