"""Identifies the kind of processor, on which packed weights and the choice of kernels depend."""

import platform
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """Name of the kind of processor, with its instruction sets if the system reports them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    keys = ("model name", "flags", "Features", "CPU part")
    return " ".join(sorted({line for line in lines if line.startswith(keys)}))


def has_vnni() -> bool:
    """Whether the processor can add products of 8-bit numbers in 32 bits: VNNI of x86, or dot products of ARM."""
    flags = processor().split()
    return not {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"}.isdisjoint(flags)
