"""How long one request may keep the event loop."""

import asyncio
import time

# Seconds after which others are served.
_MOST = 0.01


class LoopShare:
    """One task's share of the event loop.

    A task which finds all that it awaits already there is never suspended: an answer whose tokens had come faster than
    they were told kept the loop for 2.7 s.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def renew(self) -> None:
        """Note that the task was suspended, so that others have had the loop."""
        self._since = time.perf_counter()

    async def give_way(self) -> None:
        """Let others have the loop if this task has had it for long."""
        if time.perf_counter() - self._since > _MOST:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
