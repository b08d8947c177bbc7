"""Products overflow on x86 processors without VNNI, and nowhere else."""

import platform
from pathlib import Path

import pytest

from genai_server.engine.model.overflow import products_overflow

CPUINFO = Path("/proc/cpuinfo")


@pytest.mark.skipif(not CPUINFO.exists(), reason="reads the processor's instruction sets from Linux")
def test_products_overflow_only_on_x86_without_vnni() -> None:
    has_vnni = "_vnni" in CPUINFO.read_text(encoding="utf-8")
    assert products_overflow() == (platform.machine() == "x86_64" and not has_vnni)
