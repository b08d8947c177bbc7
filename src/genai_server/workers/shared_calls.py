"""Work that several requests wait for at the same time, but that is done only once."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Makes the work of a call.
Begin = Callable[[], Coroutine[Any, Any, T]]


class SharedCall(Generic[T]):
    """Work that runs as long as at least one caller waits for it. Each caller must call `leave` in the end. SharedCalls
    creates it.

    `forget` is called when no further caller may join the work.
    """

    def __init__(self, begin: Begin[T], forget: Callable[["SharedCall[T]"], None]) -> None:
        self.num_waiting = 0
        self._begin = begin
        self._forget = forget
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._ended)

    async def result(self) -> T:
        """Wait for the work and return its result, or raise its exception."""
        return await asyncio.shield(self._task)

    def leave(self) -> None:
        """End one caller's wait for the result. The work is cancelled if no other caller waits."""
        self.num_waiting -= 1
        if not self.num_waiting:
            self._task.cancel()
            self._forget(self)

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        """Call `callback` when the work has ended or was cancelled."""
        self._task.add_done_callback(callback)

    async def _run(self) -> T:
        return await self._begin()

    def _ended(self, task: "asyncio.Task[T]") -> None:
        self._forget(self)
        if not task.cancelled():
            task.exception()  # nobody else may ask for it


class SharedCalls(Generic[T]):
    """The work that requests wait for now, by key: requests that need work with the same key share one SharedCall. For
    use in the event loop only.
    """

    def __init__(self) -> None:
        self._calls: dict[str, SharedCall[T]] = {}

    def __contains__(self, key: str) -> bool:
        """Whether a call with this key is running."""
        return key in self._calls

    def join(self, key: str, begin: Begin[T]) -> SharedCall[T]:
        """Join the running call with this key, or start the work that `begin` returns.

        The caller must `leave` the call.
        """

        def forget(call: SharedCall[T]) -> None:
            if self._calls.get(key) is call:
                del self._calls[key]

        if key not in self._calls:
            self._calls[key] = SharedCall(begin, forget)
        call = self._calls[key]
        call.num_waiting += 1
        return call

    async def run(self, key: str, begin: Begin[T]) -> T:
        """Return the result of the running call with this key, or of the work that `begin` returns."""
        call = self.join(key, begin)
        try:
            return await call.result()
        finally:
            call.leave()
