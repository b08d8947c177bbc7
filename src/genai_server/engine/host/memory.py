"""Memory that the process may still allocate: less than the machine's free memory in a container with a limit."""

import math
from pathlib import Path

import psutil

from genai_server.engine.host.cgroups import control_groups


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that are free on the machine and within the limits of the process's control groups; at least 0."""
    left = [_left(group) for group in control_groups(root, "memory")]
    return int(max(0.0, min([float(psutil.virtual_memory().available), *left])))


def _left(group: Path) -> float:
    """The memory left within a group's limit; infinity without one. Inactive cached files count as free."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most = (group / limit).read_text(encoding="utf-8").strip()
            if most == "max":
                continue
            lines = (group / "memory.stat").read_text(encoding="utf-8").splitlines()
            stat = dict(line.split(" ", 1) for line in lines)
            return int(most) - int((group / used).read_text(encoding="utf-8")) + int(stat.get(cached, 0))
        except (OSError, ValueError):
            continue
    return math.inf
