"""Full collections of cycles are rare but do happen, and exclude the objects of the start."""

import asyncio
import gc
import weakref

import pytest

from genai_server.gc_policy import rare_full_collections


class Cycle:
    """An object that references itself, so that reference counting does not free it."""

    def __init__(self) -> None:
        self.itself = self


def aged_cycle() -> "weakref.ref[Cycle]":
    """An unreachable cycle that has survived the collections of young objects, so only a full collection finds it."""
    cycle = Cycle()
    gc.collect(0)
    gc.collect(1)
    return weakref.ref(cycle)


def test_a_full_collection_comes_by_the_clock() -> None:
    async def wait_for_one() -> None:
        async with rare_full_collections(min_seconds=0.05):
            cycle = aged_cycle()
            gc.collect(1)
            async with asyncio.timeout(30):
                while cycle() is not None:  # noqa: ASYNC110 - the collector has no callback for this
                    await asyncio.sleep(0.01)

    asyncio.run(wait_for_one())


def test_memory_freed_by_a_full_collection_goes_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_for_one() -> None:
        given_back = asyncio.Event()
        monkeypatch.setattr("genai_server.gc_policy.release_free_memory", given_back.set)
        async with rare_full_collections(min_seconds=0.05), asyncio.timeout(30):
            await given_back.wait()

    asyncio.run(wait_for_one())


def test_full_collection_is_not_triggered_by_allocations() -> None:
    async def full_collections() -> int:
        async with rare_full_collections():
            before = gc.get_stats()[2]["collections"]
            kept = [[index] for index in range(300_000)]  # many times what triggers a collection
            del kept
            return int(gc.get_stats()[2]["collections"] - before)

    assert asyncio.run(full_collections()) == 0


def test_objects_of_the_start_are_frozen_until_the_end() -> None:
    gc.unfreeze()
    before = gc.get_threshold(), gc.get_freeze_count()

    async def frozen() -> int:
        async with rare_full_collections():
            return gc.get_freeze_count()

    assert asyncio.run(frozen()) > 1000
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
