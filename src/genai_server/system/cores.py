"""The processor cores that this process may use, and the NUMA nodes to which the cores belong on Linux.

They are read from /sys, so that the limits of a container's cpuset and of Kubernetes' static CPU policy are respected,
and CPUs that are offline are not counted. ONNX Runtime's own count of cores leaves half of a small machine idle.
"""

import math
import os
import sys
from collections.abc import Iterable, Set
from dataclasses import dataclass
from pathlib import Path

import psutil

from genai_server.system.cgroups import control_groups

_CPUS = Path("sys/devices/system/cpu")
_NODES = Path("sys/devices/system/node")
# The CPUs of the slower cores of Intel's hybrid processors. Other processors' kinds differ in `cpu_capacity`.
_EFFICIENT = Path("sys/devices/cpu_atom/cpus")


@dataclass(frozen=True)
class Core:
    """A physical core, with its logical CPUs that this process may use."""

    # Its logical CPUs that this process may use, in ascending order.
    cpus: tuple[int, ...]
    # Equal for cores of the same speed; cores of hybrid processors differ.
    kind: str = ""


@dataclass(frozen=True)
class Node:
    """A NUMA node: a group of cores, with a part of the memory that these cores reach faster than the rest of the
    memory.
    """

    number: int
    # Those that this process may use, in the order of their CPUs; at least one.
    cores: tuple[Core, ...]
    # Bytes of memory that are free, or hold files that can be read again; 0 if unknown.
    free_memory: int = 0


def usable_cores(root: Path = Path("/")) -> int:
    """Number of physical cores that the CPU affinity of the process and the quotas of its control groups allow, at
    least 1.

    `root` is the root of the file system.
    """
    if sys.platform == "linux":
        present = len(_cores(root, os.sched_getaffinity(0)))
    else:
        present = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return max(1, math.floor(min(present, cpu_quota(root))))


def usable_cpus(root: Path = Path("/")) -> int:
    """Number of logical CPUs that the CPU affinity of the process and the quotas of its control groups allow, at least
    1.

    `root` is the root of the file system.
    """
    if sys.platform == "linux":
        present = len(os.sched_getaffinity(0))
    else:
        present = os.cpu_count() or 1
    return max(1, math.floor(min(present, cpu_quota(root))))


def numa_nodes(root: Path = Path("/")) -> list[Node]:
    """The NUMA nodes that have cores which this process may use, in ascending order of their numbers. Empty on other
    systems than Linux.

    Where the kernel or a container does not show the nodes, all cores form one node with the number 0. `root` is the
    root of the file system.
    """
    found: list[Node] = []
    if sys.platform == "linux":
        allowed = os.sched_getaffinity(0)
        for folder in (root / _NODES).glob("node[0-9]*"):
            if cores := _cores(root, allowed & set(cpus_of(_text(folder / "cpulist")))):
                found.append(Node(int(folder.name.removeprefix("node")), cores, _free_memory(folder)))
        found = sorted(found, key=lambda node: node.number) or [Node(0, _cores(root, allowed))]
    return found


def cpus_of(text: str) -> list[int]:
    """Parse a list of CPUs in the form of the Linux kernel, such as `0-3,8`."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def in_ranges(cpus: Iterable[int]) -> str:
    """Format numbers of CPUs as a list in the form of the Linux kernel, such as `0-3,8`."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def cpu_quota(root: Path = Path("/")) -> float:
    """Number of CPUs that the process's control group and its ancestors allow, which is the smallest of their quotas;
    infinity without a quota.

    `root` is the root of the file system.
    """
    groups = control_groups(root, "cpu")
    return min(quota(group) for group in groups for quota in (_quota_v1, _quota_v2))


def _cores(root: Path, cpus: Set[int]) -> tuple[Core, ...]:
    """The physical cores to which the logical CPUs with these numbers belong. Where /sys does not show that, each CPU
    counts as a core of its own.
    """
    efficient = set(cpus_of(_text(root / _EFFICIENT)))
    members: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        siblings = _text(root / _CPUS / f"cpu{cpu}/topology/thread_siblings_list")
        members.setdefault(siblings or f"cpu{cpu}", []).append(cpu)
    return tuple(
        Core(tuple(each), _text(root / _CPUS / f"cpu{each[0]}/cpu_capacity") + "e" * (each[0] in efficient))
        for each in members.values()
    )


def _free_memory(node: Path) -> int:
    """The bytes of a NUMA node's memory that are free or hold files that can be read again; 0 if unknown. `node` is the
    node's folder in /sys.
    """
    sizes = {words[2]: int(words[3]) for line in _text(node / "meminfo").splitlines() if len(words := line.split()) > 3}
    return 1024 * sum(sizes.get(name, 0) for name in ("MemFree:", "Active(file):", "Inactive(file):"))


def _text(file: Path) -> str:
    """The text of a file without white space around it; "" if the file cannot be read."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


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
