"""What `nvidia-smi` reports about NVIDIA's GPUs. Without that command there is nothing to report."""

from __future__ import annotations

import shutil
import subprocess

_ABOUT = ("name", "driver_version", "memory.total")
_NOW = ("memory.used", "utilization.gpu", "power.draw", "clocks.sm")
_SECONDS = 10.0


def gpu_names() -> list[dict[str, str]]:
    """Name, driver and memory of each GPU."""
    return _gpus(_ABOUT)


def gpu_use() -> list[dict[str, str]]:
    """Memory in MiB, utilization in percent, power in W and clock in MHz of each GPU now."""
    return _gpus(_NOW)


def gpu_memory(pid: int | None) -> dict[str, int]:
    """MiB in use on all GPUs together, and those of one process; containers may hide the latter."""
    used = [row["memory.used"] for row in _gpus(("memory.used",)) if row["memory.used"].isdigit()]
    found = {"gpu_mib": sum(map(int, used))} if used else {}
    for row in _query("--query-compute-apps=pid,used_memory"):
        if row[0] == str(pid) and row[-1].isdigit():
            found["engine_gpu_mib"] = found.get("engine_gpu_mib", 0) + int(row[-1])
    return found


def _gpus(fields: tuple[str, ...]) -> list[dict[str, str]]:
    rows = _query(f"--query-gpu={','.join(fields)}")
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def _query(query: str) -> list[list[str]]:
    """The columns of each line; none if the command fails or takes too long."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [] if done.returncode else done.stdout.splitlines()
    return [[cell.strip() for cell in line.split(",")] for line in lines]
