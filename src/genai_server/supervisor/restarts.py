"""How soon an engine that has died is started again, and when no more."""

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 30.0
# An engine that has served for this long has recovered: what comes after is not the same trouble.
RECOVERED_AFTER = 60.0


class Restarts:
    """Counts the restarts of one engine in a row; all times are in seconds.

    A crash loop is more than `most` of them, none of which served for RECOVERED_AFTER.
    """

    def __init__(self, most: int) -> None:
        self.in_a_row = 0
        self._most = most

    def served(self, seconds: float) -> None:
        """The engine that has died now had served for so long."""
        if seconds > RECOVERED_AFTER:
            self.in_a_row = 0

    def pause(self) -> float | None:
        """How long to wait before the next start: twice as long as before; None to give up."""
        if self.in_a_row >= self._most:
            return None
        self.in_a_row += 1
        return min(FIRST_PAUSE * 2.0 ** (self.in_a_row - 1), LONGEST_PAUSE)
