"""Memory that may still be allocated: in a container with a limit, less than the machine's free memory."""

import math
from pathlib import Path

import psutil

from genai_server.system.cgroups import control_groups

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


def free_memory(root: Path = Path("/"), *, keeps_mapped: bool = False) -> int:
    """Return the bytes that are free on the machine and within the limits of this process's control groups.

    With `keeps_mapped`, files that processes have mapped count as used. These include the weights of running engines,
    which the system would otherwise have to read again and again.
    """
    left = [_left(group, keeps_mapped=keeps_mapped) for group in control_groups(root, "memory")]
    available = float(psutil.virtual_memory().available) - (_mapped(root) if keeps_mapped else 0)
    return int(max(0.0, min([available, *left])))


def total_memory(root: Path = Path("/")) -> int:
    """Return the machine's memory in bytes, or the smallest limit of this process's control groups."""
    limits = [_limit(group) for group in control_groups(root, "memory")]
    return int(min([float(psutil.virtual_memory().total), *limits]))


def _limit(group: Path) -> float:
    """Return the memory limit of a control group in bytes; infinity if it has none."""
    for limit, *_ in _GROUP_FILES:
        try:
            text = (group / limit).read_text(encoding="utf-8").strip()
            return math.inf if text == "max" else int(text)
        except (OSError, ValueError):
            continue
    return math.inf


def _mapped(root: Path) -> int:
    """Return the bytes of files that the machine's processes have mapped; 0 if the system does not report them."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Mapped:")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _left(group: Path, *, keeps_mapped: bool) -> float:
    """Return the bytes left within a control group's limit; infinity without a limit.

    Inactive cached files count as free. With `keeps_mapped`, active ones do as well, but no files that processes have
    mapped.
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
