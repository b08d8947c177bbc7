"""How many threads a CPU operator should use: the physical cores that this process may use.

onnxruntime's own default counts otherwise and leaves half of a small machine idle.
"""

import math
import os
import sys
from pathlib import Path

import psutil


def usable_cores(root: Path = Path("/")) -> int:
    """Physical cores within the process's CPU affinity and its control groups' quotas, at least 1."""
    return max(1, math.floor(min(_physical_cores(root), _quota(root))))


def _physical_cores(root: Path) -> int:
    if sys.platform == "linux":
        topology = root / "sys/devices/system/cpu"
        allowed = os.sched_getaffinity(0)
        try:
            return len({(topology / f"cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in allowed})
        except OSError:
            return len(allowed)
    else:
        return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def _quota(root: Path) -> float:
    """CPUs that the tightest control group above the process grants; infinity without a limit.

    Version 2 has the groups as folders, nested as /proc/self/cgroup says; version 1 has one for the CPU controller. In
    a container the process's own group is the root of what it sees.
    """
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    own = groups / path
    nested = [own, *own.parents][: len(Path(path).parts) + 1]
    return min([_quota_v2(group) for group in nested] + [_quota_v1(groups / "cpu")])


def _quota_v2(group: Path) -> float:
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return math.inf
    return math.inf if quota == "max" else int(quota) / int(period)


def _quota_v1(group: Path) -> float:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return math.inf
    return quota / period if quota > 0 else math.inf
