"""Full collections of cycles are rare, come all the same, and leave out what the start has made."""

import asyncio
import gc
import weakref

import pytest

from genai_server.gc_policy import rare_full_collections


class Cycle:
    """Reaches itself, so that counting references does not free it."""

    def __init__(self) -> None:
        self.itself = self


def aged_cycle() -> "weakref.ref[Cycle]":
    """An unreachable cycle that has survived the collections of young objects, so that only a full one finds it."""
    cycle = Cycle()
    gc.collect(0)
    gc.collect(1)
    return weakref.ref(cycle)


def test_a_full_collection_comes_by_the_clock() -> None:
    async def wait_for_one() -> None:
        async with rare_full_collections(least_seconds=0.05):
            cycle = aged_cycle()
            gc.collect(1)
            async with asyncio.timeout(30):
                while cycle() is not None:  # noqa: ASYNC110 - the collector tells nobody
                    await asyncio.sleep(0.01)

    asyncio.run(wait_for_one())


def test_what_a_full_collection_frees_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_for_one() -> None:
        given_back = asyncio.Event()
        monkeypatch.setattr("genai_server.gc_policy.give_back_free_memory", given_back.set)
        async with rare_full_collections(least_seconds=0.05), asyncio.timeout(30):
            await given_back.wait()

    asyncio.run(wait_for_one())


def test_none_comes_by_the_number_of_objects() -> None:
    async def full_collections() -> int:
        async with rare_full_collections():
            before = gc.get_stats()[2]["collections"]
            kept = [[index] for index in range(300_000)]  # many times what makes Python do one
            del kept
            return int(gc.get_stats()[2]["collections"] - before)

    assert asyncio.run(full_collections()) == 0


def test_what_the_start_has_made_is_spared_until_the_end() -> None:
    gc.unfreeze()
    before = gc.get_threshold(), gc.get_freeze_count()

    async def frozen() -> int:
        async with rare_full_collections():
            return gc.get_freeze_count()

    assert asyncio.run(frozen()) > 1000
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
