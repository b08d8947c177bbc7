"""Free memory of a CUDA device."""

import ctypes
import sys

# The runtime's library of CUDA 13, and of CUDA 12. ONNX Runtime has loaded it before.
_NAMES = ("cudart64_13.dll", "cudart64_12.dll") if sys.platform == "win32" else ("libcudart.so.13", "libcudart.so.12")


def free_gpu_memory(device_id: int) -> int | None:
    """Free bytes of a CUDA device; None if there is no such device or no CUDA.

    `device_id` counts the devices that the process may use, as CUDA does.
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
