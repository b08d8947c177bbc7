"""The processor cores and the memory that this process may use, within the limits of its control groups
(`usable_cores`, `numa_nodes`, `free_memory`).

Cores and NUMA nodes are read from /sys, so that the limits of a container's cpuset and of Kubernetes' static CPU policy
are respected, and CPUs that are offline are not counted. ONNX Runtime's own count of cores leaves half of a small
machine idle. In a container with a limit, the memory that may still be allocated is less than the machine's free
memory.

The module also decides when Python collects garbage (`rare_full_collections`), and when freed memory is returned to the
operating system (`release_free_memory`). A full collection visits every container object and stops the process
meanwhile: half a second with 2,000 requests. Of the C libraries, only glibc is supported.
"""

import asyncio
import ctypes
import gc
import logging
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Iterable, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

log = logging.getLogger(__name__)
_CPUS = Path("sys/devices/system/cpu")
_NODES = Path("sys/devices/system/node")
# The CPUs of the slower cores of Intel's hybrid processors. Other processors' kinds differ in `cpu_capacity`.
_EFFICIENT = Path("sys/devices/cpu_atom/cpus")
# Files with the limit and the usage of a group's memory, and the names in its statistics of cached files, inactive and
# active, and of files that processes have mapped.
_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file", "active_file", "file_mapped"),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
        "total_active_file",
        "total_mapped_file",
    ),
)


def control_groups(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's control groups and of their ancestors that may limit a controller such as
    "memory". `root` is the root of the file system, which tests replace.

    /proc/self/cgroup has a line `number:controllers:path` for each hierarchy. cgroup version 2 names no controllers and
    has one tree; version 1 has a tree for each controller. In a container, the process sees its own group as the root.
    """
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    trees = {"": top, controller: top / controller}
    folders = list(trees.values())
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            if name in trees:
                group = trees[name] / path.lstrip("/")
                folders += [group, *group.parents][: len(Path(path).parts) - 1]
    return folders


@dataclass(frozen=True)
class Core:
    """A physical processor core: the logical CPUs of it that this process may use, and its kind on hybrid
    processors.
    """

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
    """Return the number of physical cores that this process may use by its CPU affinity and the CPU quotas of its
    control groups, at least 1.

    `root` is the root of the file system, which tests replace.
    """
    if sys.platform == "linux":
        present = len(_cores(root, os.sched_getaffinity(0)))
    else:
        present = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return max(1, math.floor(min(present, cpu_quota(root))))


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the number of logical CPUs that this process may use by its CPU affinity and the CPU quotas of its control
    groups, at least 1.

    `root` is the root of the file system, which tests replace.
    """
    if sys.platform == "linux":
        present = len(os.sched_getaffinity(0))
    else:
        present = os.cpu_count() or 1
    return max(1, math.floor(min(present, cpu_quota(root))))


def numa_nodes(root: Path = Path("/")) -> list[Node]:
    """Return the NUMA nodes that have cores which this process may use, in ascending order of their numbers. Empty on
    other systems than Linux.

    Where the kernel or a container does not show the nodes, all cores form one node with the number 0. `root` is the
    root of the file system, which tests replace.
    """
    nodes: list[Node] = []
    if sys.platform == "linux":
        allowed = os.sched_getaffinity(0)
        for folder in (root / _NODES).glob("node[0-9]*"):
            if cores := _cores(root, allowed & set(cpus_of(_text(folder / "cpulist")))):
                nodes.append(Node(int(folder.name.removeprefix("node")), cores, _free_memory(folder)))
        nodes = sorted(nodes, key=lambda node: node.number) or [Node(0, _cores(root, allowed))]
    return nodes


def cpus_of(text: str) -> list[int]:
    """Return the numbers of the CPUs in a list in the form of the Linux kernel, such as `0-3,8`."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def in_ranges(cpus: Iterable[int]) -> str:
    """Return numbers of CPUs as text in the form of the Linux kernel's lists, such as `0-3,8`."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def cpu_quota(root: Path = Path("/")) -> float:
    """Return the number of CPUs that the process's control group and its ancestors allow, which is the smallest of
    their quotas; infinity without a quota.

    `root` is the root of the file system, which tests replace.
    """
    groups = control_groups(root, "cpu")
    return min(quota(group) for group in groups for quota in (_quota_v1, _quota_v2))


def _cores(root: Path, cpus: Set[int]) -> tuple[Core, ...]:
    """Return the physical cores to which the logical CPUs with the numbers `cpus` belong. Where /sys does not show
    that, each CPU counts as a core of its own. `root` is the root of the file system.
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
    """Return the bytes of a NUMA node's memory that are free or hold files that can be read again; 0 if unknown. `node`
    is the node's folder in /sys.
    """
    sizes = {words[2]: int(words[3]) for line in _text(node / "meminfo").splitlines() if len(words := line.split()) > 3}
    return 1024 * sum(sizes.get(name, 0) for name in ("MemFree:", "Active(file):", "Inactive(file):"))


def _text(file: Path) -> str:
    """Return the text of a file without white space around it; "" if the file cannot be read."""
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


def free_memory(root: Path = Path("/"), *, keeps_mapped: bool = False) -> int:
    """Return the bytes of memory that are free on the machine and within the limits of this process's control groups.

    With `keeps_mapped`, files that processes have mapped into memory count as used. These include the weights of
    running engines, which the system would otherwise have to read again and again. `root` is the root of the file
    system.
    """
    group_free = [_left(group, keeps_mapped=keeps_mapped) for group in control_groups(root, "memory")]
    available = float(psutil.virtual_memory().available) - (_mapped(root) if keeps_mapped else 0)
    return int(max(0.0, min([available, *group_free])))


def total_memory(root: Path = Path("/")) -> int:
    """Return the machine's memory in bytes, or the smallest memory limit of this process's control groups if that is
    less.
    """
    limits = [_limit(group) for group in control_groups(root, "memory")]
    return int(min([float(psutil.virtual_memory().total), *limits]))


def _limit(group: Path) -> float:
    """Return the memory limit of the control group with this folder in bytes; infinity if it has none."""
    for limit, *_ in _GROUP_FILES:
        try:
            text = (group / limit).read_text(encoding="utf-8").strip()
            return math.inf if text == "max" else int(text)
        except (OSError, ValueError):
            continue
    return math.inf


def _mapped(root: Path) -> int:
    """Return the bytes of files that the machine's processes have mapped into memory; 0 if the system does not report
    them. `root` is the root of the file system.
    """
    try:
        lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Mapped:")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _left(group: Path, *, keeps_mapped: bool) -> float:
    """Return the bytes of memory that are left within the limit of a control group, whose folder is `group`; infinity
    without a limit.

    Cached files that were not used recently count as free. With `keeps_mapped`, all cached files count as free except
    those that processes have mapped into memory.
    """
    for limit_file, used, inactive, active, mapped in _GROUP_FILES:
        try:
            limit = (group / limit_file).read_text(encoding="utf-8").strip()
            if limit == "max":
                continue
            lines = (group / "memory.stat").read_text(encoding="utf-8").splitlines()
            stat = {name: int(value) for name, value in (line.split(" ", 1) for line in lines)}
            cached = stat.get(inactive, 0)
            if keeps_mapped:
                cached = max(0, cached + stat.get(active, 0) - stat.get(mapped, 0))
            return int(limit) - int((group / used).read_text(encoding="utf-8")) + cached
        except (OSError, ValueError):
            continue
    return math.inf


# glibc's constants (malloc.h), and its initial value of the threshold.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_MMAP_THRESHOLD = 128 * 1024
# Maximum share of time that full collections may take, and minimum seconds between two of them.
_SHARE = 1 / 200
_MIN_SECONDS = 10.0
_NEVER = 1_000_000_000


def release_large_blocks_at_once() -> None:
    """Let the C library return each memory block of 128 KiB or more to the operating system as soon as it is freed,
    from now on in this process.

    glibc raises that threshold up to 32 MiB as large blocks are freed. Memory for a few large bodies and grammars then
    stays with the process (measured: 145 MB instead of 70 MB after 20,000 hostile requests). Not for a process that
    allocates large arrays all the time, because the system would clear each of them again. Does nothing with another C
    library than glibc.
    """
    _ask("mallopt", _M_MMAP_THRESHOLD, _MMAP_THRESHOLD)


def share_heaps() -> None:
    """Let threads that are started from now on share the existing heaps of the C library, so that the process keeps
    less freed memory.

    glibc gives each thread a heap of its own, which keeps its freed memory. Threads that wait for Python's lock do not
    benefit from that. Does nothing with another C library than glibc.
    """
    _ask("mallopt", _M_ARENA_MAX, 1)


def release_free_memory() -> None:
    """Return all free pages of the C library's heap to the operating system, including those between used blocks.

    This takes some milliseconds, or longer if much is returned. No thread can allocate memory during that time. Does
    nothing with another C library than glibc.
    """
    _ask("malloc_trim", 0)


def _ask(function: str, *arguments: int) -> None:
    if sys.platform == "linux":
        try:
            getattr(ctypes.CDLL(None), function)(*arguments)
        except (OSError, AttributeError):  # another C library
            log.debug("the C library has no %s", function)


def freeze_existing_objects() -> None:
    """Exclude all Python objects that exist now from later garbage collections, which then take less time. For objects
    that live as long as the process.
    """
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def rare_full_collections(min_seconds: float = _MIN_SECONDS) -> AsyncIterator[None]:
    """Return an asynchronous context manager: during the block, Python runs full garbage collections by the clock
    instead of by the number of objects. There are at least `min_seconds` seconds between two collections, and more if
    collections take long.
    """
    freeze_existing_objects()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    collecting = asyncio.create_task(_collect_fully(min_seconds))
    try:
        yield
    finally:
        collecting.cancel()
        gc.set_threshold(young, middle, old)
        gc.unfreeze()


async def _collect_fully(min_seconds: float) -> None:
    took = 0.0
    while True:
        await asyncio.sleep(max(min_seconds, took / _SHARE))
        started = time.perf_counter()
        gc.collect()
        release_free_memory()
        took = time.perf_counter() - started
