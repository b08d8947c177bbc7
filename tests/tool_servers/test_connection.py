"""Places of calls on a tool server: shared between tenants, and given back however a call ends."""

import asyncio

import pytest

from genai_server.tool_servers.connection import CallSlots

pytestmark = pytest.mark.anyio


class Calls:
    """Calls that run until they are ended, on a server with this number of places."""

    def __init__(self, number: int) -> None:
        self._slots = CallSlots(number)
        self.running: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def start(self, *names: str) -> None:
        """Start calls; the first letter of a name is its tenant."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._run(name))
        await self._settle()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self._settle()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await self._settle()

    async def _run(self, name: str) -> None:
        async with self._slots.slot(name[0]):
            self.running.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.running.remove(name)

    async def _settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_a_key_leaves_a_place_to_others() -> None:
    calls = Calls(3)
    await calls.start("a1", "a2", "a3")
    assert calls.running == ["a1", "a2"]
    await calls.start("b1")
    assert calls.running == ["a1", "a2", "b1"]


async def test_a_free_place_goes_to_the_key_with_the_fewest_calls() -> None:
    calls = Calls(3)
    await calls.start("a1", "a2", "b1", "a3", "c1")
    await calls.end("b1")
    assert calls.running == ["a1", "a2", "c1"]
    await calls.end("a1")
    assert calls.running == ["a2", "c1", "a3"]


async def test_cancelled_calls_give_their_places_back() -> None:
    calls = Calls(2)
    await calls.start("a1", "a2", "b1")
    await calls.cancel("a2")
    await calls.cancel("a1")
    assert calls.running == ["b1"]
    await calls.start("a3")
    assert calls.running == ["b1", "a3"]


async def test_the_only_place_is_for_all() -> None:
    calls = Calls(1)
    await calls.start("a1", "a2", "b1")
    await calls.end("a1")
    assert calls.running == ["a2"]
