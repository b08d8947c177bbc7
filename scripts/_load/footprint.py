"""What a process holds of its machine, as Linux tells it (man 5 proc)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Footprint:
    """Bytes of memory, what is shared by its part (PSS); `own` of them are no file's. Open files, threads."""

    pss: int
    own: int
    handles: int
    threads: int


def footprint(pid: int) -> Footprint:
    """A process now."""
    sizes: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, size = line.split()[:2]
        sizes[name.rstrip(":")] = int(size) * 1024
    process = psutil.Process(pid)
    return Footprint(sizes["Pss"], sizes["Pss_Anon"], process.num_fds(), process.num_threads())
