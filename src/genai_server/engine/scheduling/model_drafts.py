"""When a draft model drafts the next tokens of sequences, and how many: pure policy, without the model itself.

A draft model costs a pass for each token that it drafts, and the time to read what it has not read of a sequence. It
drafts where that is expected to pay, by the measured times of both models and the acceptance of earlier drafts. Reading
a prompt pays if the rest of the answer is expected to save more time than that takes.

Where drafts do not pay, some are tried from time to time. What all that costs has a budget
(engine/scheduling/draft_budget.py), so answers are hardly slower than without a draft model.
"""

import logging
from dataclasses import dataclass
from collections.abc import Mapping
from collections.abc import Sequence as Several
from typing import Protocol
from weakref import WeakSet

from genai_server.engine.scheduling.draft_budget import DraftBudget
from genai_server.engine.scheduling.drafts import MAX_LENGTH, NO_DRAFT, Acceptance, Draft, UnmadeDraft, fit_drafts
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, MIN_CHUNK, StepTimeModel
from genai_server.engine.sequence import Sequence
from genai_server.timing import Clock

log = logging.getLogger(__name__)
# The assumed acceptance before any draft.
_FIRST_SHARE = 0.6
# How many tokens this or the acceptance of other sequences counts like, and how slowly a sequence's own one and that of
# all are forgotten. It changes more slowly than where a text repeats itself.
_WEIGHT, _DECAY, _DECAY_OF_ALL = 6.0, 0.9, 0.98
# Reading must be expected to save this many times the time that it takes, because neither is certain.
_MIN_RETURN = 2.0
_MIN_READ_GAIN = 1.1
# A sequence with at most this many unread tokens is drafted right away. Others are read in chunks before.
_FEW = MIN_CHUNK
# The acceptance of drafts that are as good as can be.
_BEST_SHARE = 0.9
# Sequences with a lower acceptance are only looked at for trials, and that in one of this number of steps.
_MIN_SHARE, _TRIAL_EVERY = 0.05, 8
# One of this number of steps at least has no drafts, so that it is known what drafts save.
_PLAIN_EVERY = 32


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
class _Drafted:
    """A step with drafts that are expected to pay."""

    num_rows: int
    # Seconds of a step of these rows without any draft, and without those of the draft model.
    plain: float
    expected: float
    # Seconds that these drafts have taken up to now, and those saved.
    cost: float
    # Seconds that an accepted token is worth.
    per_token: float
    saved: float = 0.0


class ModelDrafts:
    """The drafts of a device's draft model."""

    def __init__(self, model: DraftingModel, max_chunk: int, clock: Clock) -> None:
        self._model = model
        self._max_chunk = max_chunk  # tokens that it reads in a pass of prompts, at most
        self._overall = Acceptance(_FIRST_SHARE, weight=_WEIGHT, decay=_DECAY_OF_ALL)
        self._clock = clock
        self._budget = DraftBudget()
        self._reading: set[Sequence] = set()  # sequences whose reading has begun, because their drafts are expected to pay
        self._tried: WeakSet[Sequence] = WeakSet()  # sequences that are read for a trial
        self._failed: WeakSet[Sequence] = WeakSet()  # sequences that it could not read
        self._drafted: set[Sequence] = set()  # sequences whose draft it has made for the last step
        self._promising: WeakSet[Sequence] = WeakSet()  # sequences of whose last draft some tokens were accepted
        self._on_trial: set[Sequence] = set()  # sequences with a draft in the last step that was not expected to pay
        self._per_token = 0.0  # seconds of a step without drafts, for each of the last one's rows
        self._step: _Drafted | None = None  # the last step, if it had drafts that were expected to pay
        self._num_steps = 0

    def passed(self, seconds: float) -> None:
        """Learn how long a step took, without the draft model's time."""
        if (step := self._step) is None:
            self._budget.earn(seconds)
        else:
            self._budget.settle(step.num_rows, step.plain, step.saved - step.cost - (seconds - step.expected))
        self._step = None

    def choose(
        self, batch: Several[Sequence], drafts: Several[Draft], may_draft: Several[bool], times: StepTimeModel
    ) -> list[Several[int]] | None:
        """The draft that a step reads of each sequence of the batch: a part of the given one, or one that is made now.
        None if the model cannot help.

        Only sequences that may have drafts get one. `times` are those of the steps.
        """
        started = self._clock()
        self._drafted, self._step = set(), None
        self._num_steps += 1
        num_rows = len(batch)
        seconds = times.curve(MAX_DRAFTED)
        if not self._budget.allows(num_rows, seconds[num_rows]):
            return None
        unread = [self._num_unread(sequence) if may else 0 for sequence, may in zip(batch, may_draft, strict=True)]
        if not any(unread):
            return None
        drafting = self._drafting()
        offers = [
            self._better(sequence, draft, number) for sequence, draft, number in zip(batch, drafts, unread, strict=True)
        ]
        fit = fit_drafts(drafts, seconds)
        # A row that is ahead of the others ends before them: then steps are as much shorter as one row makes them.
        alone = 1.0 if num_rows == 1 else min(1.0, num_rows * (1 - seconds[num_rows - 1] / seconds[num_rows]))
        self._per_token = alone * seconds[num_rows] / num_rows
        if any(isinstance(offer, UnmadeDraft) for offer in offers):
            own = fit
            fit = fit_drafts(offers, seconds, drafting, alone=alone)
            if fit.per_second < own.per_second:
                offers, fit = list(drafts), own
        is_paying = any(length and isinstance(offer, UnmadeDraft) for length, offer in zip(fit.lengths, offers, strict=True))
        if is_paying and not times.has_timed(num_rows, _PLAIN_EVERY):
            return [()] * num_rows
        lengths, trials = self._with_trials(batch, offers, fit.lengths, seconds, drafting)
        behind = {row: number - 1 for row, number in enumerate(unread) if number > _FEW}
        chunks: list[tuple[Sequence, int]] = []
        if behind:
            rows = self._worth_reading(batch, offers, behind, fit.per_second, times, seconds, drafting, alone)
            chunks = self._chunks([(batch[row], behind[row]) for row in rows], seconds[num_rows])
        wanted = [
            (sequence, length)
            for sequence, offer, length in zip(batch, offers, lengths, strict=True)
            if isinstance(offer, UnmadeDraft) and length
        ]
        if wanted or chunks:
            self._budget.begin(num_rows, seconds[num_rows])
        made = self._made(wanted, chunks)
        self._drafted = {sequence for sequence, tokens in made.items() if tokens}
        cost = self._clock() - started
        if chunks:
            reading = self._model.times.seconds_to_read(sum(number for _, number in chunks))
            reading = min(cost, reading) if wanted else cost
            self._budget.spend(reading)
            cost -= reading
        if is_paying:
            num_own = sum(length for length, offer in zip(lengths, offers, strict=True) if isinstance(offer, Draft))
            self._step = _Drafted(
                num_rows, seconds[num_rows], seconds[num_rows + num_own], cost - trials, fit.worth * seconds[num_rows] / num_rows
            )
        return [
            offer.tokens[:length] if isinstance(offer, Draft) else made.get(sequence, [])
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
        if sequence in self._on_trial:
            self._budget.spend(-num_accepted * self._per_token)
        elif self._step is not None:
            self._step.saved += num_accepted * self._step.per_token
        self._acceptance(sequence).count(num_drafted, num_accepted, num_tokens)
        self._overall.count(num_drafted, num_accepted, num_tokens)

    def _drafting(self) -> list[float]:
        """Seconds of the draft model's passes of 0, 1, … tokens."""
        return [0.0, *self._model.times.curve(MAX_DRAFTED)[1:]]

    def _acceptance(self, sequence: Sequence) -> Acceptance:
        if sequence.model_acceptance is None:
            sequence.model_acceptance = Acceptance(self._overall.share, weight=_WEIGHT, decay=_DECAY)
        return sequence.model_acceptance

    def _num_unread(self, sequence: Sequence) -> int:
        """How many tokens the draft model would read before it drafts; 0 if it cannot draft or need not be asked."""
        is_hopeless = self._acceptance(sequence).share < _MIN_SHARE and not self._is_tried(sequence)
        if is_hopeless and self._num_steps % _TRIAL_EVERY:
            return 0
        if sequence in self._failed or min(sequence.num_left - 1, self._model.room(sequence)) < 1:
            return 0
        return self._model.num_unread(sequence)

    def _better(self, sequence: Sequence, draft: Draft, num_unread: int) -> Draft | UnmadeDraft:
        """The given draft, or what the draft model would make if more of that is expected to be accepted.

        A given one that is due is tried in any case.
        """
        if not 0 < num_unread <= _FEW or (draft.tokens and draft.is_due):
            return draft
        unmade = self._unmade(sequence, num_unread)
        return unmade if _expected(unmade) > _expected(draft) else draft

    def _unmade(self, sequence: Sequence, num_unread: int) -> UnmadeDraft:
        length = min(MAX_LENGTH, sequence.num_left - 1, self._model.room(sequence))
        return UnmadeDraft(length, self._acceptance(sequence).share, num_unread)

    def _with_trials(
        self,
        batch: Several[Sequence],
        offers: Several[Draft | UnmadeDraft],
        lengths: Several[int],
        seconds: Several[float],
        drafting: Several[float],
    ) -> tuple[list[int], float]:
        """The lengths, with a single token of some drafts that are not expected to pay, and the seconds of these."""
        found, total = list(lengths), 0.0
        self._on_trial = set()
        for row, (sequence, offer) in enumerate(zip(batch, offers, strict=True)):
            num_tokens = len(batch) + sum(found)
            if found[row] or not isinstance(offer, UnmadeDraft) or num_tokens + 1 >= len(seconds):
                continue
            cost = drafting[min(offer.num_unread, len(drafting) - 1)] + seconds[num_tokens + 1] - seconds[num_tokens]
            if sequence in self._tried or self._may_try(sequence, cost, len(batch), seconds, drafting):
                self._budget.spend(cost)
                self._on_trial.add(sequence)
                found[row] = 1
                total += cost
        return found, total

    def _is_tried(self, sequence: Sequence) -> bool:
        """Whether a trial of a sequence goes on."""
        return sequence in self._tried or sequence in self._promising

    def _may_try(
        self, sequence: Sequence, cost: float, num_rows: int, seconds: Several[float], drafting: Several[float]
    ) -> bool:
        """Whether to try a draft of a sequence now: if drafts may pay with so many rows, however good they are."""
        is_due = sequence in self._promising or self._acceptance(sequence).is_due(len(sequence.tokens))
        if not is_due or cost > self._budget.seconds:
            return False
        best = UnmadeDraft(MAX_LENGTH, _BEST_SHARE, 1)
        return any(fit_drafts([best] * num_rows, seconds, drafting).lengths)

    def _worth_reading(
        self,
        batch: Several[Sequence],
        offers: Several[Draft | UnmadeDraft],
        behind: Mapping[int, int],
        per_second: float,
        times: StepTimeModel,
        seconds: Several[float],
        drafting: Several[float],
        alone: float,
    ) -> list[int]:
        """The rows to read for later drafts, of those `behind` by a number of tokens.

        They are read if the rest of the answers is expected to save more time with their drafts than that takes. A
        single one is read for a trial. `per_second` are the expected tokens of this step.
        """
        later = [
            self._unmade(batch[row], 1) if row in behind and isinstance(offer, Draft) and not offer.tokens else offer
            for row, offer in enumerate(offers)
        ]
        fit = fit_drafts(later, seconds, drafting, alone=alone)
        rows = [row for row in behind if fit.lengths[row] and isinstance(later[row], UnmadeDraft)]
        left = sum(min(sequence.num_left, times.tokens_left(sequence.num_produced)) for sequence in batch)
        saved = min(1 / per_second - 1 / fit.per_second, self._budget.gain(len(batch)) * seconds[len(batch)] / len(batch))
        begun, self._reading = self._reading, set()
        if self._budget.seconds < 0:
            rows = [row for row in rows if batch[row] in begun]
        if fit.per_second > _MIN_READ_GAIN * per_second and left * saved > _MIN_RETURN * sum(self._model.times.seconds_to_read(behind[r]) for r in rows):
            self._reading = {batch[row] for row in rows}
            return rows
        for row, number in behind.items():
            if batch[row] in self._tried:
                return [row]
            cost = self._model.times.seconds_to_read(number)
            if self._may_try(batch[row], cost + drafting[1], len(batch), seconds, drafting):
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
        if not wanted and not chunks:
            return {}
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


def _expected(draft: Draft | UnmadeDraft) -> float:
    """How many tokens of a draft are expected to be accepted."""
    return sum(draft.share**place for place in range(1, draft.length + 1))
