"""When a draft model drafts the next tokens of sequences, and how many: pure policy, without the model itself.

A draft model costs a pass for each token that it drafts, and the time to read what it has not read of a sequence. It
drafts where that is expected to pay, by the measured times of both models and the acceptance of earlier drafts. Reading
a prompt pays if the rest of the answer is expected to save more time than that takes.

Where drafts do not pay, some are tried from time to time. These trials get a fixed share of the time of all steps, so
they cannot slow down answers by more than that.
"""

import logging
from collections.abc import Sequence as Several
from typing import Protocol
from weakref import WeakSet

from genai_server.engine.scheduling.drafts import MAX_LENGTH, MIN_GAIN, Acceptance, Draft, UnmadeDraft, fit_drafts
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, MIN_CHUNK, StepTimeModel
from genai_server.engine.sequence import Sequence

log = logging.getLogger(__name__)
# The assumed acceptance before any draft, and how slowly that of earlier sequences is forgotten.
_FIRST_SHARE, _DECAY = 0.6, 0.98
# A sequence with at most this many unread tokens is drafted right away. Others are read in chunks before.
_FEW = MIN_CHUNK
# Share of the time of steps for trials, and the most seconds that are saved up for them.
_TRIAL_SHARE, _MAX_SAVED = 0.01, 10.0


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


class ModelDrafts:
    """The drafts of a device's draft model."""

    def __init__(self, model: DraftingModel, max_chunk: int) -> None:
        self._model = model
        self._max_chunk = max_chunk  # tokens that it reads in a pass of prompts, at most
        self._overall = Acceptance(_FIRST_SHARE, decay=_DECAY)
        self._saved = 0.0  # seconds for trials
        self._tried: WeakSet[Sequence] = WeakSet()  # sequences that are read for a trial
        self._failed: WeakSet[Sequence] = WeakSet()  # sequences that it could not read
        self._drafted: WeakSet[Sequence] = WeakSet()  # sequences whose last draft it made

    def passed(self, seconds: float) -> None:
        """Count the time of a step without the draft model's."""
        self._saved = min(_MAX_SAVED, self._saved + _TRIAL_SHARE * seconds)

    def choose(
        self, batch: Several[Sequence], drafts: Several[Draft], may_draft: Several[bool], times: StepTimeModel
    ) -> list[Several[int]]:
        """The draft that a step reads of each sequence of the batch: a part of the given one, or one that is made now.

        Only sequences that may have drafts get one. `times` are those of the steps.
        """
        seconds = times.curve(MAX_DRAFTED)
        drafting = self._drafting()
        unread = [self._num_unread(sequence) if may else 0 for sequence, may in zip(batch, may_draft, strict=True)]
        offers = [
            self._better(sequence, draft, number) for sequence, draft, number in zip(batch, drafts, unread, strict=True)
        ]
        fit = fit_drafts(drafts, seconds)
        if any(isinstance(offer, UnmadeDraft) for offer in offers):
            own = fit
            fit = fit_drafts(offers, seconds, drafting)
            if fit.per_second < own.per_second:
                offers, fit = list(drafts), own
        lengths = self._with_trials(batch, offers, fit.lengths, seconds, drafting)
        chunks = self._chunks(batch, unread, times, seconds, drafting)
        wanted = [
            (sequence, length)
            for sequence, offer, length in zip(batch, offers, lengths, strict=True)
            if isinstance(offer, UnmadeDraft) and length
        ]
        made = self._made(wanted, chunks)
        self._drafted = WeakSet(sequence for sequence, tokens in made.items() if tokens)
        return [
            offer.tokens[:length] if isinstance(offer, Draft) else made.get(sequence, [])
            for sequence, offer, length in zip(batch, offers, lengths, strict=True)
        ]

    def has_drafted(self, sequence: Sequence) -> bool:
        """Whether the draft that the last step read of a sequence was made by the draft model."""
        return sequence in self._drafted

    def count(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Record how many tokens of a sequence's last draft were accepted."""
        num_tokens = len(sequence.tokens)
        self._tried.discard(sequence)
        self._acceptance(sequence).count(num_drafted, num_accepted, num_tokens)
        self._overall.count(num_drafted, num_accepted, num_tokens)

    def _drafting(self) -> list[float]:
        """Seconds of the draft model's passes of 0, 1, … tokens."""
        return [0.0, *self._model.times.curve(MAX_DRAFTED)[1:]]

    def _acceptance(self, sequence: Sequence) -> Acceptance:
        if sequence.model_acceptance is None:
            sequence.model_acceptance = Acceptance(self._overall.share)
        return sequence.model_acceptance

    def _num_unread(self, sequence: Sequence) -> int:
        """How many tokens the draft model would read before it drafts; 0 if it cannot draft."""
        if sequence in self._failed or min(sequence.num_left - 1, self._model.room(sequence)) < 1:
            return 0
        return self._model.num_unread(sequence)

    def _better(self, sequence: Sequence, draft: Draft, num_unread: int) -> Draft | UnmadeDraft:
        """The given draft, or what the draft model would make if more of that is expected to be accepted.

        A given one that is due is tried in any case.
        """
        if not 0 < num_unread <= _FEW or (draft.tokens and draft.is_due):
            return draft
        length = min(MAX_LENGTH, sequence.num_left - 1, self._model.room(sequence))
        unmade = UnmadeDraft(length, self._acceptance(sequence).share, num_unread)
        return unmade if _expected(unmade) > _expected(draft) else draft

    def _with_trials(
        self,
        batch: Several[Sequence],
        offers: Several[Draft | UnmadeDraft],
        lengths: Several[int],
        seconds: Several[float],
        drafting: Several[float],
    ) -> list[int]:
        """The lengths, with a single token of some drafts that are not expected to pay."""
        found = list(lengths)
        for row, (sequence, offer) in enumerate(zip(batch, offers, strict=True)):
            num_tokens = len(batch) + sum(found)
            if found[row] or not isinstance(offer, UnmadeDraft) or num_tokens + 1 >= len(seconds):
                continue
            cost = drafting[min(offer.num_unread, len(drafting) - 1)] + seconds[num_tokens + 1] - seconds[num_tokens]
            if self._is_due(sequence) and cost <= self._saved:
                self._saved -= cost
                found[row] = 1
        return found

    def _is_due(self, sequence: Sequence) -> bool:
        return self._acceptance(sequence).is_due(len(sequence.tokens))

    def _chunks(
        self,
        batch: Several[Sequence],
        unread: Several[int],
        times: StepTimeModel,
        seconds: Several[float],
        drafting: Several[float],
    ) -> list[tuple[Sequence, int]]:
        """The tokens to read now of sequences that are too far behind to be drafted. The newest token is never among
        them. They take at most about as long as the step.
        """
        num_rows = len(batch)
        behind = [(sequence, number - 1) for sequence, number in zip(batch, unread, strict=True) if number > _FEW]
        if not behind:
            return []
        budget = int(self._model.times.tokens_read_in(seconds[num_rows]))
        budget = min(self._max_chunk, max(MIN_CHUNK, budget))
        chunks: list[tuple[Sequence, int]] = []
        for sequence, number in behind:
            if budget < 1:
                break
            if self._pays_to_read(sequence, number, num_rows, times, seconds, drafting):
                chunks.append((sequence, min(number, budget)))
                budget -= chunks[-1][1]
        return chunks

    def _pays_to_read(
        self,
        sequence: Sequence,
        num_unread: int,
        num_rows: int,
        times: StepTimeModel,
        seconds: Several[float],
        drafting: Several[float],
    ) -> bool:
        """Whether the rest of an answer is expected to save more time with drafts than it takes to read what the draft
        model has not read; or whether a trial has begun or may begin.
        """
        if sequence in self._tried:
            return True
        cost = self._model.times.seconds_to_read(num_unread)
        plain = num_rows / seconds[num_rows]
        drafted = _most_per_second(num_rows, self._acceptance(sequence).share, seconds, drafting)
        if drafted > MIN_GAIN * plain:
            left = min(sequence.num_left, times.tokens_left(sequence.num_produced))
            return left * (1 / plain - 1 / drafted) > cost
        if not self._is_due(sequence) or cost > self._saved:
            return False
        self._saved -= cost
        self._tried.add(sequence)
        return True

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


def _most_per_second(num_rows: int, share: float, seconds: Several[float], drafting: Several[float]) -> float:
    """The most tokens per second of a batch whose rows all have drafts of the same length and acceptance."""
    best, expected, chance, passes = 0.0, 1.0, 1.0, 0.0
    for num_tokens in range(2 * num_rows, len(seconds), num_rows):
        chance *= share
        expected += chance
        passes += drafting[num_rows]
        best = max(best, num_rows * expected / (seconds[num_tokens] + passes))
    return best
