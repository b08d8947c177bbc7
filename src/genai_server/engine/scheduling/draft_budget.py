"""What a draft model may cost: a small share of the time of steps, unless its drafts save more than they cost.

Estimates of what drafts save are not exact enough where that is little, as with several rows. So what steps with drafts
have really saved is added up, for each number of rows. If that falls below zero, none are drafted for as many rows
until the share has paid for it and for a further attempt.
"""

from collections import defaultdict
from math import inf

# The share of the time of steps, and the most seconds that are saved up.
_SHARE, _MAX_SECONDS = 0.01, 10.0
# In steps without drafts: what drafts may lose at first, what a further attempt may lose, and the most of earlier
# savings that may be lost again.
_WEIGHT = 1 / 16
_FIRST, _FURTHER, _MOST = 2.0, 1.0, 6.0


class DraftBudget:
    """The seconds that a draft model may still cost."""

    def __init__(self) -> None:
        # For reading, trials and further attempts. Below zero while reading has not paid off yet.
        self.seconds = 0.0
        # What steps with drafts have saved, by their number of rows, in steps without drafts.
        self._saved: defaultdict[int, float] = defaultdict(lambda: _FIRST)
        self._gains: dict[int, float] = {}  # the moving average of that

    def earn(self, seconds: float) -> None:
        """Add the share of a step of this time."""
        self.seconds = min(_MAX_SECONDS, self.seconds + _SHARE * seconds)

    def spend(self, seconds: float) -> None:
        """Take what reading or a trial has cost."""
        self.seconds -= seconds

    def allows(self, num_rows: int, step: float) -> bool:
        """Whether to draft for so many rows, whose step without drafts takes `step` seconds."""
        return self._saved[num_rows] >= 0 or self.seconds >= self._price(num_rows, step)

    def begin(self, num_rows: int, step: float) -> None:
        """Pay for a further attempt, if drafts for so many rows have cost more than they saved."""
        if self._saved[num_rows] < 0:
            self.seconds -= self._price(num_rows, step)
            self._saved[num_rows] = _FURTHER

    def settle(self, num_rows: int, step: float, saved: float) -> None:
        """Add what a step with drafts has saved; it is negative if it has cost more. Savings first pay for reading.

        A step that another program disturbs counts as one that costs twice as much.
        """
        steps = max(-1.0, saved / step)
        self._gains[num_rows] = self._gains.get(num_rows, steps) * (1 - _WEIGHT) + steps * _WEIGHT
        self._saved[num_rows] = min(_MOST, self._saved[num_rows] + steps)
        if saved > 0 > self.seconds:
            self.seconds = min(0.0, self.seconds + saved)

    def gain(self, num_rows: int) -> float:
        """What a step with drafts for so many rows saves, in steps without; infinite if that is not known."""
        return self._gains.get(num_rows, inf)

    def _price(self, num_rows: int, step: float) -> float:
        return (_FURTHER - self._saved[num_rows]) * step
