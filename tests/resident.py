"""The memory that the keys and values of a batch take, as Linux counts it."""

import mmap

import numpy as np

from genai_server.engine.runners.cpu_buffers import CpuBuffers


def resident_bytes(buffers: CpuBuffers) -> int:
    """Memory of the buffers' pages which lie in RAM or in swap.

    /proc/self/smaps would show neighbouring mappings, which may be of others, as one.
    """
    found = 0
    with open("/proc/self/pagemap", "rb", buffering=0) as pages:
        for array in buffers.arrays:
            pages.seek(array.ctypes.data // mmap.PAGESIZE * 8)
            entries = np.frombuffer(pages.read(array.nbytes // mmap.PAGESIZE * 8), np.uint64)
            found += int(np.count_nonzero(entries >> np.uint64(62))) * mmap.PAGESIZE
    return found
