"""What the load tools count as growth."""

import sys

import pytest
from _load.footprint import Footprint, footprint, grown

BEFORE = Footprint(pss=100, own=80, handles=10, threads=5)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells it under /proc")
def test_a_process_has_memory_handles_and_threads() -> None:
    import os

    found = footprint(os.getpid())
    assert found.pss > found.own > 1_000_000
    assert found.handles > 0
    assert found.threads > 0


@pytest.mark.parametrize(
    ("after", "broken"),
    [
        (Footprint(130, 82, 12, 7), []),
        (Footprint(100, 83, 10, 5), ["memory does not grow"]),
        (Footprint(100, 80, 17, 5), ["handles and threads stay level"]),
        (Footprint(100, 90, 10, 38), ["memory does not grow", "handles and threads stay level"]),
    ],
)
def test_growth_is_what_is_its_own(after: Footprint, broken: list[str]) -> None:
    assert grown(BEFORE, after, 0.03) == broken
