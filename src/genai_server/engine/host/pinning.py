"""Binds an engine process to the cores and the memory of one NUMA node, as `numactl` does. Linux only."""

import contextlib
import ctypes
import logging
import os
import platform
import sys
from pathlib import Path

from genai_server.messages.server_status import EngineCores
from genai_server.system.cores import cpus_of

log = logging.getLogger(__name__)
# The number of the system call set_mempolicy, which C libraries do not offer.
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_MPOL_PREFERRED = 1  # linux/mempolicy.h
# Nodes of the mask, a multiple of 64.
_MAX_NODES = 1024


def keep_on(cores: EngineCores) -> None:
    """Bind this process to the CPUs in `cores`, and prefer memory of their NUMA node if `cores` names one.

    This must be called before the first session of ONNX Runtime is opened, so that the session's threads inherit both
    settings; existing threads are bound to the CPUs, too. If the node has no free memory, Linux uses memory of other
    nodes. If the system refuses a setting, as in some containers, this is only logged. Does nothing except on Linux.
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
    """Make Linux prefer memory of a NUMA node for this thread, and for threads that it starts.

    Returns "", or the reason if this is impossible.
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
