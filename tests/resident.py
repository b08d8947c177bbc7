"""The memory that the keys and values of a batch take, as Linux counts it."""

import re
from pathlib import Path

from genai_server.engine.runners.cpu_buffers import CpuBuffers


def resident_bytes(buffers: CpuBuffers) -> int:
    """Memory that the buffers take, as the kernel tells it of their mappings."""
    starts = {array.ctypes.data for array in buffers._arrays}
    found, counts = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="ascii").splitlines():
        if place := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            # Neighbouring mappings are shown as one.
            first, last = (int(place[number], 16) for number in (1, 2))
            counts = any(first <= start < last for start in starts)
        elif counts and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found
