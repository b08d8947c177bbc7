"""When Python collects garbage, and when freed memory is returned to the operating system.

A full collection visits every container object and stops the process meanwhile: half a second with 2,000 requests. Of
the C libraries, only glibc is supported.
"""

import asyncio
import ctypes
import gc
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

log = logging.getLogger(__name__)
# glibc's constants (malloc.h), and its initial value of the threshold.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_MMAP_THRESHOLD = 128 * 1024
# Maximum share of time that full collections may take, and minimum seconds between two of them.
_SHARE = 1 / 200
_MIN_SECONDS = 10.0
_NEVER = 1_000_000_000


def release_large_blocks_at_once() -> None:
    """From now on, return each freed memory block of 128 KiB or more to the operating system at once.

    glibc raises that threshold up to 32 MiB as large blocks are freed. Memory for a few large bodies and grammars then
    stays with the process (measured: 145 MB instead of 70 MB after 20,000 hostile requests). Not for a process that
    allocates large arrays all the time, because the system would clear each of them again.
    """
    _ask("mallopt", _M_MMAP_THRESHOLD, _MMAP_THRESHOLD)


def share_heaps() -> None:
    """Make threads that are started from now on share the existing heaps of the C library.

    glibc gives each thread a heap of its own, which keeps its freed memory. Threads that wait for Python's lock do not
    benefit from that.
    """
    _ask("mallopt", _M_ARENA_MAX, 1)


def release_free_memory() -> None:
    """Return all free pages of the heap to the operating system, including those between used blocks.

    Takes some milliseconds, or longer if much is returned. No thread can allocate memory during that time.
    """
    _ask("malloc_trim", 0)


def _ask(function: str, *arguments: int) -> None:
    if sys.platform == "linux":
        try:
            getattr(ctypes.CDLL(None), function)(*arguments)
        except (OSError, AttributeError):  # another C library
            log.debug("the C library has no %s", function)


def freeze_existing_objects() -> None:
    """Exclude all existing objects, which live as long as the process, from later garbage collections."""
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def rare_full_collections(min_seconds: float = _MIN_SECONDS) -> AsyncIterator[None]:
    """Run full garbage collections by the clock instead of by the number of objects, during the block. There are at
    least `min_seconds` between two collections, and more if collections take long.
    """
    freeze_existing_objects()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    collecting = asyncio.create_task(_collect_fully(min_seconds))
    try:
        yield
    finally:
        collecting.cancel()
        gc.set_threshold(young, middle, old)
        gc.unfreeze()


async def _collect_fully(min_seconds: float) -> None:
    took = 0.0
    while True:
        await asyncio.sleep(max(min_seconds, took / _SHARE))
        started = time.perf_counter()
        gc.collect()
        release_free_memory()
        took = time.perf_counter() - started
