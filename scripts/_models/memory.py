"""The memory of a process, as Linux tells it."""

from __future__ import annotations

from pathlib import Path


def proportional_set_size(pid: int) -> int:
    """Bytes in memory, those that several processes share by each one's part (man 5 proc, smaps_rollup)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{pid}/smaps_rollup has no Pss")
