"""Number of threads for CPU operators: the physical cores that this process may use.

ONNX Runtime's default counts differently and leaves half of a small machine idle.
"""

import math
import os
import sys
from pathlib import Path

import psutil

from genai_server.system.cgroups import control_groups


def usable_cores(root: Path = Path("/")) -> int:
    """Physical cores within the CPU affinity of the process and the quotas of its control groups, at least 1.

    `root` is the root of the file system.
    """
    return max(1, math.floor(min(_physical_cores(root), cpu_quota(root))))


def usable_cpus(root: Path = Path("/")) -> int:
    """Logical CPUs within the CPU affinity of the process and the quotas of its control groups, at least 1.

    `root` is the root of the file system.
    """
    if sys.platform == "linux":
        present = len(os.sched_getaffinity(0))
    else:
        present = os.cpu_count() or 1
    return max(1, math.floor(min(present, cpu_quota(root))))


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


def cpu_quota(root: Path = Path("/")) -> float:
    """CPUs granted by the tightest control group above the process; infinity without a limit."""
    groups = control_groups(root, "cpu")
    return min(quota(group) for group in groups for quota in (_quota_v1, _quota_v2))


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
