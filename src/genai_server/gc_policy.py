"""When Python's garbage collector (module gc) looks for unreachable cycles.

A full collection visits every container, and the process stops until it ends: half a second with 2,000 requests. The
memory it frees is returned to the system.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from genai_server.malloc import release_free_memory

# Maximum share of time that full collections may take, and minimum seconds between two of them.
_SHARE = 1 / 200
_MIN_SECONDS = 10.0
_NEVER = 1_000_000_000


def freeze_existing_objects() -> None:
    """Exclude the objects made at the start, which live as long as the process, from all later collections."""
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def rare_full_collections(min_seconds: float = _MIN_SECONDS) -> AsyncIterator[None]:
    """Run full collections by the clock instead of by the number of objects; the longer they take, the rarer."""
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
