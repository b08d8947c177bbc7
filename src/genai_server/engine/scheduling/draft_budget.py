"""What a draft model may cost: a small share of the time of steps, unless its drafts save more than they cost.

Estimates are not precise enough to tell small savings from losses, as with several rows. So the savings of steps with
drafts are added up, for each number of rows. Below zero, nothing is drafted for as many rows until the share has paid
for that and for another attempt.
"""

from collections import defaultdict
from dataclasses import dataclass

# The share of the time of steps, and the most seconds that are saved up.
_SHARE, _MAX_SECONDS = 0.01, 10.0
# In steps without drafts: what drafts may lose at first, what they may lose in another attempt, and the most that they
# may lose after they have saved more.
_FIRST, _AGAIN, _MAX = 2.0, 1.0, 6.0
# Weight of the newest step in the mean.
_WEIGHT = 1 / 16


@dataclass
class _Savings:
    """What steps with drafts have saved for a number of rows, in steps without drafts."""

    total: float = _FIRST
    # The moving average; None before the first one.
    mean: float | None = None


class DraftBudget:
    """The seconds that a draft model may cost."""

    def __init__(self) -> None:
        # For trials, reading and other attempts. Below zero while the time for reading has not been saved yet.
        self.seconds = 0.0
        self._savings: defaultdict[int, _Savings] = defaultdict(_Savings)  # by the number of rows

    def passed(self, seconds: float) -> None:
        """Add the share of a step without drafts."""
        self.seconds = min(_MAX_SECONDS, self.seconds + _SHARE * seconds)

    def add(self, seconds: float) -> None:
        """Add what a trial has saved, or what anything has cost if that is negative."""
        self.seconds += seconds

    def allows(self, num_rows: int, step: float) -> bool:
        """Whether to draft for this number of rows. A step without drafts takes `step` seconds."""
        return self._savings[num_rows].total >= 0 or self.seconds >= self._price(num_rows, step)

    def begin(self, num_rows: int, step: float) -> None:
        """Pay for another attempt if the drafts for this number of rows have lost too much."""
        if self._savings[num_rows].total < 0:
            self.seconds -= self._price(num_rows, step)
            self._savings[num_rows].total = _AGAIN

    def settle(self, num_rows: int, step: float, seconds: float) -> None:
        """Add what the drafts of a step have saved; negative if they have cost more. This also pays for reading.

        A loss of more than a step counts as one: it is a disturbance, which steps without drafts have, too.
        """
        savings, steps = self._savings[num_rows], max(-1.0, seconds / step)
        savings.total = min(_MAX, savings.total + steps)
        savings.mean = steps if savings.mean is None else (1 - _WEIGHT) * savings.mean + _WEIGHT * steps
        if seconds > 0 > self.seconds:
            self.seconds = min(0.0, self.seconds + seconds)

    def saved_per_step(self, num_rows: int) -> float | None:
        """What drafts for this number of rows have lately saved, in steps without drafts; None before any."""
        return self._savings[num_rows].mean

    def _price(self, num_rows: int, step: float) -> float:
        return (_AGAIN - self._savings[num_rows].total) * step
