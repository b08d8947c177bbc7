"""What an engine asks of the host: cores to run on (`restrict_to_cores`), the type of the processor (`processor`,
`has_vnni`), free GPU memory (`free_gpu_memory`), and a lower priority of threads (`lower_cpu_priority`).
"""

import contextlib
import ctypes
import logging
import os
import platform
import sys
import threading
from functools import cache
from pathlib import Path

from genai_server.messages.server_status import EngineCores
from genai_server.system.resources import cpus_of

log = logging.getLogger(__name__)
# The number of the system call set_mempolicy, which C libraries do not offer.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_MPOL_PREFERRED = 1  # linux/mempolicy.h
# Nodes of the mask, a multiple of 64.
_MAX_NODES = 1024


def restrict_to_cores(cores: EngineCores) -> None:
    """Bind this process to the CPUs in `cores`, and prefer memory of their NUMA node if `cores` names one.

    This must be called before the first session of ONNX Runtime is opened, so that the session's threads inherit both
    settings; threads that exist already are bound to the CPUs, too. If the node has no free memory, Linux uses memory
    of other nodes. If the system refuses a setting, as in some containers, this is only logged. Does nothing except on
    Linux.
    """
    if sys.platform == "linux":
        try:
            for thread in Path("/proc/self/task").iterdir():
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    os.sched_setaffinity(int(thread.name), cpus_of(cores.cpus))
        except OSError as error:
            log.warning("the engine cannot be kept on CPUs %s: %s", cores.cpus, (error.strerror or str(error)).lower())
        if cores.node is not None and (why := _prefer_memory_of(cores.node)):
            log.info(
                "memory of NUMA node %d cannot be preferred: %s; Linux takes it from the node of the thread that uses "
                "it first, unless the process was started with another policy",
                cores.node,
                why,
            )


def _prefer_memory_of(node: int) -> str:
    """Make Linux prefer memory of the NUMA node number `node` for this thread, and for threads that it starts.

    Returns "" if that was possible, and otherwise the reason why not.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"the system call is not known on {platform.machine()}"
    if node >= _MAX_NODES:
        return f"only nodes below {_MAX_NODES} can be named"
    library = ctypes.CDLL(None, use_errno=True)
    mask = (ctypes.c_uint64 * (_MAX_NODES // 64))()
    mask[node // 64] = 1 << node % 64
    status = library.syscall(
        ctypes.c_long(number), ctypes.c_long(_MPOL_PREFERRED), mask, ctypes.c_ulong(_MAX_NODES + 1)
    )
    return os.strerror(ctypes.get_errno()).lower() if status else ""


@cache
def processor() -> str:
    """Return the name and the instruction sets of the processor, as far as the system reports them, as a text that is
    equal for processors of the same type. It is a part of the keys of stored results that depend on the processor.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    keys = ("model name", "flags", "Features", "CPU part")
    return " ".join(sorted({line for line in lines if line.startswith(keys)}))


def has_vnni() -> bool:
    """Return whether the processor has instructions that add products of 8-bit integers as 32-bit integers: VNNI or AMX
    of x86, or the dot products of ARM. Without them, such products of signed weights may overflow in ONNX Runtime.
    """
    flags = processor().split()
    return not {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"}.isdisjoint(flags)


# The runtime's library of CUDA 13, and of CUDA 12. ONNX Runtime has loaded it before.
_NAMES = ("cudart64_13.dll", "cudart64_12.dll") if sys.platform == "win32" else ("libcudart.so.13", "libcudart.so.12")


def free_gpu_memory(device_id: int) -> int | None:
    """Return the free memory of a CUDA device in bytes; None if there is no such device, or no CUDA.

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


def lower_cpu_priority() -> None:
    """Lower the CPU priority of the calling thread, and of threads that it starts from now on, so that decoding comes
    before their work.

    Does nothing except on Linux, because other systems cannot set the priority of a single thread in this way.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
