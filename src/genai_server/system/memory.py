"""Memory that may still be allocated: in a container with a limit, less than the machine's free memory. And when Python
collects garbage, and when freed memory is returned to the operating system.

A full collection visits every container object and stops the process meanwhile: half a second with 2,000 requests. Of
the C libraries, only glibc is supported.
"""

import asyncio
import ctypes
import gc
import logging
import math
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from genai_server.system.cgroups import control_groups

# Files with the limit and the usage of a group's memory, and the names in its statistics of cached files, inactive and
# active, and of files that processes have mapped.
_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file", "active_file", "file_mapped"),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
        "total_active_file",
        "total_mapped_file",
    ),
)


def free_memory(root: Path = Path("/"), *, keeps_mapped: bool = False) -> int:
    """Return the bytes that are free on the machine and within the limits of this process's control groups.

    With `keeps_mapped`, files that processes have mapped count as used. These include the weights of running engines,
    which the system would otherwise have to read again and again.
    """
    left = [_left(group, keeps_mapped=keeps_mapped) for group in control_groups(root, "memory")]
    available = float(psutil.virtual_memory().available) - (_mapped(root) if keeps_mapped else 0)
    return int(max(0.0, min([available, *left])))


def total_memory(root: Path = Path("/")) -> int:
    """Return the machine's memory in bytes, or the smallest limit of this process's control groups."""
    limits = [_limit(group) for group in control_groups(root, "memory")]
    return int(min([float(psutil.virtual_memory().total), *limits]))


def _limit(group: Path) -> float:
    """Return the memory limit of a control group in bytes; infinity if it has none."""
    for limit, *_ in _GROUP_FILES:
        try:
            text = (group / limit).read_text(encoding="utf-8").strip()
            return math.inf if text == "max" else int(text)
        except (OSError, ValueError):
            continue
    return math.inf


def _mapped(root: Path) -> int:
    """Return the bytes of files that the machine's processes have mapped; 0 if the system does not report them."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Mapped:")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _left(group: Path, *, keeps_mapped: bool) -> float:
    """Return the bytes left within a control group's limit; infinity without a limit.

    Inactive cached files count as free. With `keeps_mapped`, active ones do as well, but no files that processes have
    mapped.
    """
    for limit_file, used, inactive, active, mapped in _GROUP_FILES:
        try:
            limit = (group / limit_file).read_text(encoding="utf-8").strip()
            if limit == "max":
                continue
            lines = (group / "memory.stat").read_text(encoding="utf-8").splitlines()
            stat = {name: int(value) for name, value in (line.split(" ", 1) for line in lines)}
            cached = stat.get(inactive, 0)
            if keeps_mapped:
                cached = max(0, cached + stat.get(active, 0) - stat.get(mapped, 0))
            return int(limit) - int((group / used).read_text(encoding="utf-8")) + cached
        except (OSError, ValueError):
            continue
    return math.inf


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
