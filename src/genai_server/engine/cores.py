"""How many threads a CPU operator should use: the physical cores that this process may use.

onnxruntime's own default counts otherwise and leaves half of a small machine idle.
"""

import math
import os
import sys
from pathlib import Path

import psutil


def usable_cores(sysfs: Path = Path("/sys")) -> int:
    """Physical cores within the process's CPU affinity and its control group's quota, at least 1."""
    cores = float(_physical_cores(sysfs))
    return max(1, math.floor(min(cores, _cgroup_quota(sysfs / "fs/cgroup"))))


def _physical_cores(sysfs: Path) -> int:
    if sys.platform == "linux":
        topology = sysfs / "devices/system/cpu"
        allowed = os.sched_getaffinity(0)
        try:
            return len({(topology / f"cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in allowed})
        except OSError:
            return len(allowed)
    else:
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def _cgroup_quota(cgroup: Path) -> float:
    """CPUs that the control group grants, by version 2's or version 1's files; infinity without a limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return math.inf
    if quota == "max" or int(quota) <= 0:
        return math.inf
    return int(quota) / int(period)
