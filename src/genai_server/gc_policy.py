"""When Python's garbage collector (module gc) looks for unreachable cycles.

A full collection visits every container and stops the process meanwhile: half a second with 2,000 requests. Memory that
it frees is returned to the system.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from genai_server.malloc import give_back_free_memory

# Most of the time that full collections may take, as a share, and the least seconds between two of them.
_SHARE = 1 / 200
_LEAST_SECONDS = 10.0
_NEVER = 1_000_000_000


def spare_what_is_there() -> None:
    """Exclude the objects made at the start, which live as long as the process, from all later collections."""
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def rare_full_collections(least_seconds: float = _LEAST_SECONDS) -> AsyncIterator[None]:
    """Run full collections by the clock instead of by the number of objects; the longer they take, the rarer."""
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
