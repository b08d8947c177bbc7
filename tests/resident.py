"""The resident memory of a batch's keys and values, as Linux counts it."""

import mmap

import numpy as np

from genai_server.engine.kv_cache.buffers import CpuBuffers


def resident_bytes(buffers: CpuBuffers) -> int:
    """Bytes of the buffers' pages in RAM or in swap.

    /proc/self/smaps would merge them with neighbouring mappings.
    """
    found = 0
    with open("/proc/self/pagemap", "rb", buffering=0) as pages:
        for array in buffers.arrays:
            pages.seek(array.ctypes.data // mmap.PAGESIZE * 8)
            entries = np.frombuffer(pages.read(array.nbytes // mmap.PAGESIZE * 8), np.uint64)
            found += int(np.count_nonzero(entries >> np.uint64(62))) * mmap.PAGESIZE
    return found
