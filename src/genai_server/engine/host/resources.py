"""What an engine asks of the host: the type of the processor, a lower priority of threads, and free GPU memory."""

import ctypes
import os
import platform
import sys
import threading
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """Name and instruction sets of the processor, as far as the system reports them, as a text that is equal for
    processors of the same type.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    keys = ("model name", "flags", "Features", "CPU part")
    return " ".join(sorted({line for line in lines if line.startswith(keys)}))


def has_vnni() -> bool:
    """Whether the processor has instructions that add products of 8-bit integers as 32-bit integers: VNNI of x86, or
    the dot products of ARM.
    """
    flags = processor().split()
    return not {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"}.isdisjoint(flags)


# The runtime's library of CUDA 13, and of CUDA 12. ONNX Runtime has loaded it before.
_NAMES = ("cudart64_13.dll", "cudart64_12.dll") if sys.platform == "win32" else ("libcudart.so.13", "libcudart.so.12")


def free_gpu_memory(device_id: int) -> int | None:
    """Free memory of a CUDA device in bytes; None if there is no such device, or no CUDA.

    `device_id` is the number that CUDA gives the device among those that this process may use.
    """
    for name in _NAMES:
        try:
            runtime = ctypes.CDLL(name)
        except OSError:
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        # It may be newer than the driver, and of no use.
        if not (runtime.cudaSetDevice(device_id) or runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))):
            return free.value
    return None


# Next to a thread of normal priority, one with this niceness gets a tenth of a core.
_NICENESS = 10


def let_others_go_first() -> None:
    """Lower the priority of the calling thread, and of threads that it starts from now on.

    Does nothing except on Linux, because other systems cannot set the priority of a single thread in this way.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
