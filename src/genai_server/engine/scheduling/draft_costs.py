"""What the passes of a step take, with drafts of a draft model and without, by the measured times of both models."""

from collections.abc import Sequence
from functools import cached_property

from genai_server.engine.scheduling.drafts import MAX_LENGTH, Draft, Fit, fit_drafts
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
        # What an accepted token counts if 0, 1, … rows have drafts: these end earlier, and later steps are as much
        # shorter as steps without them. Only if all rows have drafts, there are fewer steps.
        without = [0.0, *self._steps[1:num_rows]]
        saved = [(self.plain - without[num_rows - number]) / number for number in range(1, num_rows + 1)]
        self._worth = [1.0, *(min(1.0, each / self.per_token) for each in saved)]
        # The same if only one row has a draft.
        self.alone = self._worth[1]

    def fit(self, drafts: Sequence[Draft]) -> Fit:
        """What the step reads of these drafts."""
        return fit_drafts(drafts, self._steps, self._drafting, self._worth)

    def of_step(self, num_drafted: int) -> float:
        """A step with this number of drafted tokens."""
        return self._steps[min(self.num_rows + num_drafted, MAX_DRAFTED)]

    def of_token(self, num_drafted: int, num_unread: int = 1) -> float:
        """Drafting one more token than this number, of a sequence of which `num_unread` tokens are read before."""
        return self._drafting[min(num_unread, MAX_DRAFTED)] + self.of_step(num_drafted + 1) - self.of_step(num_drafted)

    @cached_property
    def max_saved(self) -> float:
        """What the best drafts of all rows can save, for each token of the batch."""
        best = Draft((), _BEST_SHARE, num_unmade=MAX_LENGTH, num_unread=1)
        return self.per_token - 1 / self.fit([best] * self.num_rows).per_second
