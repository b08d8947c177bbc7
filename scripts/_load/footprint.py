"""The resources that a process holds, as Linux reports them (man 5 proc)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median_low

import psutil

# Two connections may still be closing. Grammar checkers start when they are first needed: two of them, with two pipes
# each. So do the threads of the event loop's pool.
SPARE_HANDLES = 2 + 2 * 2
SPARE_THREADS = min(32, (os.cpu_count() or 1) + 4)


@dataclass(frozen=True)
class Footprint:
    """Bytes of memory, open files and threads. `pss` has the process's part of what is shared, `own` all anonymous
    pages.

    Pages that a forked process still shares with its siblings count in full in `own`: each of them writes to more of
    these as time goes by, which ends when nothing is shared, and is no growth.
    """

    pss: int
    own: int
    handles: int
    threads: int


def footprint(pid: int) -> Footprint:
    """The current footprint of a process."""
    sizes: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, size = line.split()[:2]
        sizes[name.rstrip(":")] = int(size) * 1024
    process = psutil.Process(pid)
    return Footprint(sizes["Pss"], sizes["Anonymous"], process.num_fds(), process.num_threads())


def together(footprints: Sequence[Footprint]) -> Footprint:
    """The sum of each figure."""
    return Footprint(*map(sum, zip(*(astuple(one) for one in footprints), strict=True)))


def usual(footprints: Sequence[Footprint]) -> Footprint:
    """The median of each figure."""
    columns = zip(*(astuple(one) for one in footprints), strict=True)
    return Footprint(*(median_low(column) for column in columns))


def growth(before: Footprint, after: Footprint) -> float:
    """The growth of anonymous memory as a share of all. The part of mapped files changes when other processes end."""
    return (after.own - before.own) / before.pss


def grown(before: Footprint, after: Footprint, max_growth: float, processes: int = 1) -> list[str]:
    """The promises that a number of processes have broken in between."""
    broken = []
    if growth(before, after) >= max_growth:
        broken.append("memory does not grow")
    more_handles, more_threads = after.handles - before.handles, after.threads - before.threads
    if more_handles > processes * SPARE_HANDLES or more_threads > processes * SPARE_THREADS:
        broken.append("handles and threads stay level")
    return broken
