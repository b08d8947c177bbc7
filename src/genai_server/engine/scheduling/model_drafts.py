"""When a draft model drafts the next tokens of sequences, and how many: pure policy, without the model itself.

A draft model costs a pass for each token that it drafts, and the time to read what it has not read of a sequence. It
drafts where that is expected to pay, by the measured times of both models and the acceptance of earlier drafts. Reading
a prompt pays if the rest of the answer is expected to save more time than that takes. Where drafts do not pay, some are
tried from time to time.

A draft model may cost a small share of the time of steps, unless its drafts save more than they cost. Estimates are not
precise enough to tell small savings from losses, as with several rows. So the savings of steps with drafts are added
up, for each number of rows. Below zero, nothing is drafted for as many rows until the share has paid for that and for
another attempt.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol
from weakref import WeakSet

from genai_server.engine.scheduling.drafts import MAX_LENGTH, Acceptance, Draft, Fit, fit_drafts
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, MIN_CHUNK, StepTimeModel
from genai_server.engine.sequence import Sequence
from genai_server.timing import Clock

# The share of the time of steps, and the most seconds that are saved up.
_SHARE, _MAX_SECONDS = 0.01, 10.0
# In steps without drafts: what drafts may lose at first, what they may lose in another attempt, and the most that they
# may lose after they have saved more.
_FIRST, _AGAIN, _MAX = 2.0, 1.0, 6.0
# Weight of the newest step in the mean.
_NEWEST = 1 / 16


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
        savings.mean = steps if savings.mean is None else (1 - _NEWEST) * savings.mean + _NEWEST * steps
        if seconds > 0 > self.seconds:
            self.seconds = min(0.0, self.seconds + seconds)

    def saved_per_step(self, num_rows: int) -> float | None:
        """What drafts for this number of rows have lately saved, in steps without drafts; None before any."""
        return self._savings[num_rows].mean

    def _price(self, num_rows: int, step: float) -> float:
        return (_AGAIN - self._savings[num_rows].total) * step


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

    def fit(self, drafts: Several[Draft]) -> Fit:
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


log = logging.getLogger(__name__)
# The assumed acceptance before any draft.
_FIRST_SHARE = 0.6
# How many tokens this or the acceptance of other sequences counts like, and how slowly a sequence's own one and that of
# all are forgotten. It changes more slowly than where a text repeats itself.
_WEIGHT, _DECAY, _DECAY_OF_ALL = 6.0, 0.9, 0.98
# Reading must be expected to save this many times the time that it takes, and drafts then to give this many times the
# tokens per second, because neither is certain.
_MIN_RETURN, _MIN_GAIN = 2.0, 1.1
# A sequence with at most this many unread tokens is drafted right away. Others are read in chunks before.
_FEW = MIN_CHUNK
# Sequences with a lower acceptance are only looked at for trials, and that in one of this number of steps.
_MIN_SHARE, _TRIAL_EVERY = 0.05, 8
# At least one of this number of steps has no drafts, so that their savings are known.
_PLAIN_EVERY = 32
# After this number of steps in which nothing was drafted or read, sequences are looked at in one of a number of steps
# only: with many of them, that takes a hundredth of a step.
_MANY_IDLE, _LOOK_EVERY = 16, 4


class DraftingModel(Protocol):
    """A draft model, as far as this policy needs it."""

    # How long its passes take.
    times: StepTimeModel

    def room(self, sequence: Sequence) -> int:
        """The most tokens that it can draft for a sequence; 0 if it cannot read the sequence."""
        ...

    def num_unread(self, sequence: Sequence) -> int:
        """How many of a sequence's tokens it has not read, at least 1."""
        ...

    def draft(self, wanted: Several[tuple[Sequence, int]], chunks: Several[tuple[Sequence, int]]) -> list[list[int]]:
        """Draft up to this number of tokens for each wanted sequence, and read a number of tokens of some others."""
        ...

    def close(self, sequence: int) -> None:
        """Forget the sequence with this id, if it is known."""
        ...


@dataclass
class _Paying:
    """A step with drafts that are expected to pay."""

    costs: DraftCosts
    # Seconds that it would have taken without these drafts.
    without: float
    # Seconds that an accepted token is worth.
    per_token: float
    # Seconds that the drafts have saved, without what they cost the step itself.
    saved: float


class ModelDrafts:
    """The drafts of a device's draft model, whose passes the `clock` times."""

    def __init__(self, model: DraftingModel, max_chunk: int, clock: Clock) -> None:
        self._model = model
        self._max_chunk = max_chunk  # tokens that it reads in a pass of prompts, at most
        self._clock = clock
        self._budget = DraftBudget()
        self._overall = Acceptance(_FIRST_SHARE, weight=_WEIGHT, decay=_DECAY_OF_ALL)
        self._reading: set[Sequence] = set()  # sequences that are read because that is expected to pay
        self._tried: WeakSet[Sequence] = WeakSet()  # sequences that are read for a trial
        self._failed: WeakSet[Sequence] = WeakSet()  # sequences that have no drafts of it after an error
        self._promising: WeakSet[Sequence] = WeakSet()  # sequences of whose last draft some tokens were accepted
        self._num_steps = 0
        self._num_idle = 0  # steps since anything was drafted or read
        # Of the last step: the sequences with drafts, those of trials with the seconds that a token is worth, and the
        # other drafts.
        self._drafted: set[Sequence] = set()
        self._on_trial: dict[Sequence, float] = {}
        self._paying: _Paying | None = None

    def passed(self, seconds: float) -> None:
        """Learn how long a step took, without the draft model's time."""
        if (step := self._paying) is None:
            self._budget.passed(seconds)
        else:
            self._budget.settle(step.costs.num_rows, step.costs.plain, step.saved - (seconds - step.without))
        self._paying = None

    def choose(
        self, batch: Several[Sequence], drafts: Several[Draft], may_draft: Several[bool], times: StepTimeModel
    ) -> list[Several[int]] | None:
        """The draft that a step reads of each sequence of the batch: a part of the given one, or one that is made now.
        None if the model drafts nothing.

        Only sequences that may have drafts get one. `times` are those of the steps.
        """
        self._forget_step()
        may_draft = [may and seq not in self._failed for seq, may in zip(batch, may_draft, strict=True)]
        try:
            return self._choose(batch, drafts, may_draft, times)
        except Exception:  # the engine must not end for what would only save time
            names = [sequence.request.request_id for sequence in batch]
            log.exception("drafts could not be chosen; requests %s go on without the draft model", names)
            self._failed.update(batch)
            self._forget_step()
            return None

    def _forget_step(self) -> None:
        self._drafted, self._on_trial, self._paying = set(), {}, None

    def _choose(
        self, batch: Several[Sequence], drafts: Several[Draft], may_draft: Several[bool], times: StepTimeModel
    ) -> list[Several[int]] | None:
        started = self._clock()
        self._num_steps += 1
        num_rows = len(batch)
        self._num_idle += 1
        if self._num_idle > _MANY_IDLE and self._num_steps % _LOOK_EVERY:
            return None
        if not self._budget.allows(num_rows, times.seconds(num_rows)):
            return None
        unread = [self._num_unread(sequence) if may else 0 for sequence, may in zip(batch, may_draft, strict=True)]
        if not any(unread):
            return None
        costs = DraftCosts(num_rows, times, self._model.times)
        offers, fit = self._offers(batch, drafts, unread, costs)
        pays = any(length for length, offer in zip(fit.lengths, offers, strict=True) if offer.num_unmade)
        if pays and not times.has_timed(num_rows, _PLAIN_EVERY):
            self._num_idle = 0
            return [()] * num_rows
        lengths, cost = self._with_trials(batch, offers, fit.lengths, costs)
        wanted = [
            (sequence, length)
            for sequence, offer, length in zip(batch, offers, lengths, strict=True)
            if length and offer.num_unmade
        ]
        chunks = self._chunks(self._behind(batch, offers, unread, fit, times, costs), costs.plain)
        if not wanted and not chunks:
            return None
        self._num_idle = 0
        self._budget.begin(num_rows, costs.plain)
        made = self._made(wanted, chunks)
        self._drafted = {sequence for sequence, tokens in made.items() if tokens}
        spent = self._clock() - started - cost
        if chunks:
            reading = min(spent, self._model.times.seconds_to_read(sum(number for _, number in chunks)))
            self._budget.add(-(reading if wanted else spent))
            spent -= reading
        if pays:
            own = sum(length for offer, length in zip(offers, lengths, strict=True) if not offer.num_unmade)
            self._paying = _Paying(costs, costs.of_step(own), fit.worth * costs.per_token, -spent)
        return [
            made.get(sequence, []) if offer.num_unmade else offer.tokens[:length]
            for sequence, offer, length in zip(batch, offers, lengths, strict=True)
        ]

    def has_drafted(self, sequence: Sequence) -> bool:
        """Whether the draft that the last step read of a sequence was made by the draft model."""
        return sequence in self._drafted

    def count(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Record how many tokens of a sequence's last draft were accepted.

        What a trial has saved pays for further ones.
        """
        num_tokens = len(sequence.tokens)
        self._tried.discard(sequence)
        if num_accepted:
            self._promising.add(sequence)
        else:
            self._promising.discard(sequence)
        if (worth := self._on_trial.get(sequence)) is not None:
            self._budget.add(num_accepted * worth)
        elif self._paying is not None:
            self._paying.saved += num_accepted * self._paying.per_token
        self._acceptance(sequence).count(num_drafted, num_accepted, num_tokens)
        self._overall.count(num_drafted, num_accepted, num_tokens)

    def _acceptance(self, sequence: Sequence) -> Acceptance:
        if sequence.model_acceptance is None:
            sequence.model_acceptance = Acceptance(self._overall.share, weight=_WEIGHT, decay=_DECAY)
        return sequence.model_acceptance

    def _num_unread(self, sequence: Sequence) -> int:
        """How many tokens the draft model would read before it drafts; 0 if it cannot draft or need not be asked."""
        is_tried = sequence in self._tried or sequence in self._promising
        is_hopeless = self._acceptance(sequence).share < _MIN_SHARE and not is_tried
        if is_hopeless and self._num_steps % _TRIAL_EVERY:
            return 0
        if min(sequence.num_left - 1, self._model.room(sequence)) < 1:
            return 0
        return self._model.num_unread(sequence)

    def _offers(
        self, batch: Several[Sequence], drafts: Several[Draft], unread: Several[int], costs: DraftCosts
    ) -> tuple[Several[Draft], Fit]:
        """The given drafts, or in place of some those that the model would make, and what a step reads of them."""
        own = costs.fit(drafts)
        offers = [
            self._better(sequence, draft, number) for sequence, draft, number in zip(batch, drafts, unread, strict=True)
        ]
        fit = costs.fit(offers)
        return (offers, fit) if fit.per_second >= own.per_second else (drafts, own)

    def _better(self, sequence: Sequence, draft: Draft, num_unread: int) -> Draft:
        """The given draft, or what the draft model would make if more of that is expected to be accepted.

        A given one that is due is tried in any case.
        """
        if not 0 < num_unread <= _FEW or (draft.tokens and draft.is_due):
            return draft
        unmade = self._unmade(sequence, num_unread)
        return unmade if _expected(unmade) > _expected(draft) else draft

    def _unmade(self, sequence: Sequence, num_unread: int) -> Draft:
        length = min(MAX_LENGTH, sequence.num_left - 1, self._model.room(sequence))
        return Draft((), self._acceptance(sequence).share, num_unmade=length, num_unread=num_unread)

    def _with_trials(
        self, batch: Several[Sequence], offers: Several[Draft], lengths: Several[int], costs: DraftCosts
    ) -> tuple[list[int], float]:
        """The lengths, with a single token of some drafts that are not expected to pay, and what these cost."""
        found, spent = list(lengths), 0.0
        for row, (sequence, offer) in enumerate(zip(batch, offers, strict=True)):
            num_drafted = sum(found)
            if found[row] or not offer.num_unmade or len(batch) + num_drafted >= MAX_DRAFTED:
                continue
            cost = costs.of_token(num_drafted, offer.num_unread)
            if sequence in self._tried or self._may_try(sequence, cost, costs):
                self._budget.add(-cost)
                self._on_trial[sequence] = costs.alone * costs.per_token
                found[row] = 1
                spent += cost
        return found, spent

    def _may_try(self, sequence: Sequence, cost: float, costs: DraftCosts) -> bool:
        """Whether a trial of a sequence can begin: if there is time for it, and the best drafts could save more in the
        rest of the answer.
        """
        is_due = sequence in self._promising or self._acceptance(sequence).is_due(len(sequence.tokens))
        if not is_due or cost > self._budget.seconds:
            return False
        return sequence.num_left * costs.num_rows * costs.max_saved > _MIN_RETURN * cost

    def _behind(
        self,
        batch: Several[Sequence],
        offers: Several[Draft],
        unread: Several[int],
        fit: Fit,
        times: StepTimeModel,
        costs: DraftCosts,
    ) -> list[tuple[Sequence, int]]:
        """The sequences to read for later drafts, each with its number of unread tokens but the newest one.

        They are read if the rest of the answers is expected to save more time with their drafts than that takes. One
        whose reading does not pay is read for a trial.
        """
        begun, self._reading = self._reading, set()
        behind = {row: number - 1 for row, number in enumerate(unread) if number > _FEW}
        if not behind:
            return []
        later = [
            self._unmade(batch[row], 1) if row in behind and not offer.length else offer
            for row, offer in enumerate(offers)
        ]
        better = costs.fit(later)
        rows = [row for row in behind if better.lengths[row] and later[row].num_unmade]
        if self._budget.seconds < 0:
            rows = [row for row in rows if batch[row] in begun]
        saved = 1 / fit.per_second - 1 / better.per_second
        if (known := self._budget.saved_per_step(costs.num_rows)) is not None:
            saved = min(saved, known * costs.per_token)
        left = sum(min(sequence.num_left, times.tokens_left(sequence.num_produced)) for sequence in batch)
        reading = sum(self._model.times.seconds_to_read(behind[row]) for row in rows)
        if better.per_second > _MIN_GAIN * fit.per_second and left * saved > _MIN_RETURN * reading:
            self._reading = {batch[row] for row in rows}
        else:
            rows = [row for row in behind if batch[row] in self._tried] or self._next_trial(batch, behind, costs)
        return [(batch[row], behind[row]) for row in rows]

    def _next_trial(self, batch: Several[Sequence], behind: Mapping[int, int], costs: DraftCosts) -> list[int]:
        """The row that is now read for a trial, if any."""
        for row, number in behind.items():
            cost = self._model.times.seconds_to_read(number) + costs.of_token(0)
            if self._may_try(batch[row], cost, costs):
                self._tried.add(batch[row])
                return [row]
        return []

    def _chunks(self, behind: Several[tuple[Sequence, int]], seconds: float) -> list[tuple[Sequence, int]]:
        """The tokens to read now of sequences that are behind by a number of tokens, without the newest one.

        They take at most about this time, that of a step.
        """
        budget = min(self._max_chunk, max(MIN_CHUNK, int(self._model.times.tokens_read_in(seconds))))
        chunks: list[tuple[Sequence, int]] = []
        for sequence, number in behind:
            if budget > 0:
                chunks.append((sequence, min(number, budget)))
                budget -= chunks[-1][1]
        return chunks

    def _made(
        self, wanted: Several[tuple[Sequence, int]], chunks: Several[tuple[Sequence, int]]
    ) -> dict[Sequence, list[int]]:
        """The drafts that the model makes now, by their sequences."""
        try:
            drafts = self._model.draft(wanted, chunks)
        except Exception:  # the engine must not end for what would only save time
            concerned = [sequence for sequence, _ in (*wanted, *chunks)]
            names = [sequence.request.request_id for sequence in concerned]
            log.exception("the draft model failed; requests %s go on without it", names)
            for sequence in concerned:
                self._model.close(sequence.id)
            self._failed.update(concerned)
            return {}
        return dict(zip((sequence for sequence, _ in wanted), drafts, strict=True))


def _expected(draft: Draft) -> float:
    """How many tokens of a draft are expected to be accepted."""
    return sum(draft.share**place for place in range(1, draft.length + 1))
