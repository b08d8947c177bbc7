"""Keeps an engine on the cores and the memory of its NUMA node, as `numactl` does; on Linux only."""

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
    """Keep all threads of this process, and those that they start, on the CPUs, and its memory on their node.

    Must precede the first session, whose threads then inherit both. Memory comes from other nodes where the node has
    none left. What the system refuses, for example in a container, costs speed only, and is logged.
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
    """Let new memory of this thread, and of those that it starts, come from a node first; returns what prevents it."""
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
