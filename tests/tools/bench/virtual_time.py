"""An event loop whose clock goes from one timer to the next, so that durations do not depend on the machine."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Adds to `now`, in seconds, the time that the loop would wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is scheduled: the loop would wait forever"
        self.now += max(timeout, 0.0)
        return super().select(0)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for timers only, not for sockets, threads or processes."""
    selector = _Selector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)
