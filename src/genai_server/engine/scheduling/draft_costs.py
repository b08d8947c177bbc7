"""What the passes of a step take, with drafts of a draft model and without, by the measured times of both models."""

from collections.abc import Sequence
from functools import cached_property

from genai_server.engine.scheduling.drafts import MAX_LENGTH, Draft, Fit, UnmadeDraft, fit_drafts
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, StepTimeModel

# The acceptance of drafts that are as good as can be expected.
_BEST_SHARE = 0.9


class DraftCosts:
    """The times of a step of `num_rows` sequences, in seconds."""

    def __init__(self, num_rows: int, steps: StepTimeModel, drafting: StepTimeModel) -> None:
        self.num_rows = num_rows
        self._steps = steps.curve(MAX_DRAFTED)
        self._drafting = [0.0, *drafting.curve(MAX_DRAFTED)[1:]]
        # A step without drafts.
        self.plain = self._steps[num_rows]
        # The same for each token.
        self.per_token = self.plain / num_rows
        # What a token is worth that only one of several rows gets: that row ends earlier, and steps without it are a
        # little shorter. If all rows get one, there is a step less.
        saved = self.plain - self._steps[num_rows - 1]
        self.alone = 1.0 if num_rows == 1 else min(1.0, saved / self.per_token)

    def fit(self, drafts: Sequence[Draft | UnmadeDraft]) -> Fit:
        """What the step reads of these drafts."""
        return fit_drafts(drafts, self._steps, self._drafting, alone=self.alone)

    def of_step(self, num_drafted: int) -> float:
        """A step with this number of drafted tokens."""
        return self._steps[min(self.num_rows + num_drafted, MAX_DRAFTED)]

    def of_token(self, num_drafted: int, num_unread: int = 1) -> float:
        """Drafting one more token than this number, of a sequence of which `num_unread` tokens are read before."""
        return self._drafting[min(num_unread, MAX_DRAFTED)] + self.of_step(num_drafted + 1) - self.of_step(num_drafted)

    @cached_property
    def max_saved(self) -> float:
        """What the best drafts of all rows can save, for each token of the batch."""
        return self.per_token - 1 / self.fit([UnmadeDraft(MAX_LENGTH, _BEST_SHARE, 1)] * self.num_rows).per_second
