"""What the bodies of all requests of an API process share: a limit (docs/decisions/0030), and a thread (0029)."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from genai_server.errors import BodiesTooLarge

# Where the app leaves the BodyBudget in the state of its lifespan, for the HTTP server's WebSockets.
BODY_BUDGET = "body_budget"

# In bytes. Parsing a shorter body takes less time than handing it to a thread.
_SHORT = 8_000

T = TypeVar("T")


class BodyBudget:
    """Counts the bytes of all bodies, from their first bytes until their requests have ended."""

    def __init__(self, max_bytes: int) -> None:
        # A single body is exempt.
        self._max_bytes = max_bytes
        self._used = 0

    def resize(self, old: int, new: int) -> None:
        """Count `new` bytes of a body, of which `old` count already.

        Raises BodiesTooLarge if it has grown beyond the limit; then it counts as before.
        """
        others = self._used - old
        if new > old and others > 0 and others + new > self._max_bytes:
            raise BodiesTooLarge(
                f"the bodies of all requests together may have at most {self._max_bytes} bytes "
                f"(GENAI_MAX_BODIES_BYTES), and {self._used} are there; try again"
            )
        self._used = others + new


class ParsingThread:
    """Runs long jobs in a thread, one at a time, because each holds the GIL."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, job: Callable[[], T], *, num_bytes: int) -> T:
        """The result of a job that reads a body of `num_bytes`; for a short body it runs at once, without a thread."""
        if num_bytes <= _SHORT:
            return job()
        async with self._turn:
            return await asyncio.to_thread(job)
