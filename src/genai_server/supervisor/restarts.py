"""When an engine that has died is restarted, and when it is given up."""

FIRST_PAUSE = 0.2
MAX_PAUSE = 30.0
# An engine that has served for this long has recovered; a later death starts a new count.
RECOVERED_AFTER = 60.0


class Restarts:
    """Counts the restarts of one engine in a row; all times are in seconds.

    More than `max_restarts` of them, without serving for RECOVERED_AFTER in between, are a crash loop.
    """

    def __init__(self, max_restarts: int) -> None:
        self.in_a_row = 0
        self._max_restarts = max_restarts

    def served(self, seconds: float) -> None:
        """Note how long the engine served before it died."""
        if seconds > RECOVERED_AFTER:
            self.in_a_row = 0

    def pause(self) -> float | None:
        """The time to wait before the next start, twice the previous one; None to give up."""
        if self.in_a_row >= self._max_restarts:
            return None
        self.in_a_row += 1
        return min(FIRST_PAUSE * 2.0 ** (self.in_a_row - 1), MAX_PAUSE)
