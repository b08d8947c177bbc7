"""What a process asks of its C library's heap. glibc is asked; with any other nothing happens."""

import ctypes
import logging
import sys

log = logging.getLogger(__name__)
# glibc's numbers (malloc.h), and its own first value of that threshold.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_MMAP_THRESHOLD = 128 * 1024


def give_back_large_blocks() -> None:
    """Have blocks of 128 KiB and more go back to the system when they are freed, from now on.

    glibc raises that threshold up to 32 MiB as large blocks are freed, and what a few large bodies and grammars have
    taken then stays with the process (measured: 145 MB instead of 70 MB after 20,000 hostile requests). It is not for
    a process that makes large arrays all the time: each would be taken from the system, and cleared by it, anew.
    """
    _ask("mallopt", _M_MMAP_THRESHOLD, _MMAP_THRESHOLD)


def share_heaps() -> None:
    """Have threads that are started from now on take memory from the heaps that there are.

    glibc gives each its own, which keeps what that thread has freed. For threads that wait for Python's lock it gains
    nothing.
    """
    _ask("mallopt", _M_ARENA_MAX, 1)


def give_back_free_memory() -> None:
    """Give the system the pages of the heap on which nothing lies now, between blocks that are used, too.

    Takes some milliseconds, in which no thread gets memory, and longer the more there is to give.
    """
    _ask("malloc_trim", 0)


def _ask(function: str, *arguments: int) -> None:
    if sys.platform == "linux":
        try:
            getattr(ctypes.CDLL(None), function)(*arguments)
        except (OSError, AttributeError):  # another C library
            log.debug("the C library has no %s", function)
