"""Settings of the C library's heap. Only glibc is supported; other libraries keep theirs."""

import ctypes
import logging
import sys

log = logging.getLogger(__name__)
# glibc's constants (malloc.h), and its initial value of the threshold.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_MMAP_THRESHOLD = 128 * 1024


def release_large_blocks_at_once() -> None:
    """Return each freed block of 128 KiB or more to the system, from now on.

    glibc raises that threshold up to 32 MiB as large blocks are freed. Memory for a few large bodies and grammars then
    stays with the process (measured: 145 MB instead of 70 MB after 20,000 hostile requests). Not for a process that
    allocates large arrays all the time: the system would clear each of them again.
    """
    _ask("mallopt", _M_MMAP_THRESHOLD, _MMAP_THRESHOLD)


def share_heaps() -> None:
    """Make threads that are started from now on share the existing heaps.

    glibc gives each thread a heap of its own, which keeps its freed memory. Threads that wait for Python's lock gain
    nothing from that.
    """
    _ask("mallopt", _M_ARENA_MAX, 1)


def release_free_memory() -> None:
    """Return all free pages of the heap to the system, including those between used blocks.

    Takes some milliseconds, more if there is more to return. No thread can allocate memory during that time.
    """
    _ask("malloc_trim", 0)


def _ask(function: str, *arguments: int) -> None:
    if sys.platform == "linux":
        try:
            getattr(ctypes.CDLL(None), function)(*arguments)
        except (OSError, AttributeError):  # another C library
            log.debug("the C library has no %s", function)
