"""When Python's collector (module gc) looks for cycles of objects that nobody reaches any more.

A full collection looks at every container that there is, and stops the process meanwhile: half a second with 2,000
requests at hand, for which nobody is answered. What they have freed goes back to the system.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from genai_server.malloc import give_back_free_memory

# Full collections may take this share of the time, and come no more often than so.
_SHARE = 1 / 200
_LEAST_SECONDS = 10.0
_NEVER = 1_000_000_000


def spare_what_is_there() -> None:
    """Take what the start has made, and lives as long as the process, out of all later collections."""
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def rare_full_collections(least_seconds: float = _LEAST_SECONDS) -> AsyncIterator[None]:
    """Have full collections come by the clock, the rarer the longer they take, instead of by the number of objects."""
    spare_what_is_there()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    collecting = asyncio.create_task(_collect_fully(least_seconds))
    try:
        yield
    finally:
        collecting.cancel()
        gc.set_threshold(young, middle, old)
        gc.unfreeze()


async def _collect_fully(least_seconds: float) -> None:
    took = 0.0
    while True:
        await asyncio.sleep(max(least_seconds, took / _SHARE))
        started = time.perf_counter()
        gc.collect()
        give_back_free_memory()
        took = time.perf_counter() - started
