"""Speculative decoding: `Speculation` chooses which draft tokens the next decoding step reads for each sequence. This
module only decides; it runs no model.

A draft comes from one of two sources. Proposals from texts (engine/scheduling/drafts.py) cost almost no time. A draft
model needs a pass for each token that it proposes, or one pass for all tokens if it drafts in parallel, and must first
read those tokens of the sequence that it has not read yet. Each sequence gets a draft from the source of which more
tokens are expected to be accepted. The lengths of all drafts are chosen by the measured times of the passes of both
models (engine/scheduling/draft_lengths.py).

The draft model reads a long prompt only if its drafts are expected to save more time in the rest of the answer than
reading the prompt takes. Recorded acceptance decays slowly towards the initial assumption, so that an answer whose
drafts were rejected gets drafts again from time to time.
"""

import logging
from collections import abc
from dataclasses import replace
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from genai_server.engine.scheduling.draft_lengths import fit_drafts
from genai_server.engine.scheduling.drafts import MAX_LENGTH, NO_DRAFT, Acceptance, Draft
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, MIN_CHUNK, StepTimeModel
from genai_server.engine.sequence import Sequence

log = logging.getLogger(__name__)
# The assumed acceptance of a draft model before any draft, and the number of tokens that this counts like.
_FIRST_SHARE, _WEIGHT = 0.6, 6.0
# Factors by which the weight of earlier tokens decays with each new one, of a sequence and of all together.
_DECAY, _DECAY_OF_ALL = 0.96, 0.99
# The share of the recorded acceptance that is forgotten in a step without drafts.
_FORGOTTEN = 1 / 128
# A sequence gets a draft right away if the draft model has at most this number of its tokens to read: those after a
# chunk, or after a draft that was accepted as a whole. Otherwise they are read in earlier passes, because the drafts of
# one step would not pay for that. A model that drafts in parallel has never read the tokens of the last draft, so the
# number is larger for it.
_FEW, _FEW_IN_PARALLEL = 2, MAX_LENGTH + 1
# Reading must be expected to save this many times the time that it takes, because neither is certain.
_MIN_RETURN = 1.5


class DraftingModel(Protocol):
    """What this module needs of a draft model, a small model or head that proposes the tokens which a large model then
    verifies.
    """

    # The measured times of the draft model's passes.
    times: StepTimeModel
    # Whether the model makes all tokens of a draft in one pass. Otherwise it needs a pass for each token.
    is_parallel: bool

    def room(self, sequence: Sequence) -> int:
        """Return the maximum number of tokens that the draft model can propose for `sequence`; 0 if it cannot read the
        sequence.
        """

    def num_unread(self, sequence: Sequence) -> int:
        """Return how many tokens of `sequence` the draft model has not read yet. At least the newest token is
        unread.
        """

    def propose(
        self, wanted: abc.Sequence[tuple[Sequence, int]], to_read: abc.Sequence[tuple[Sequence, int]]
    ) -> list[list[int]]:
        """Propose draft tokens for the sequences in `wanted`, and read tokens of the sequences in `to_read` for later
        drafts.

        `wanted` has each sequence with the maximum length of its draft, and `to_read` each sequence with the number of
        its tokens to read. Returns the draft of each sequence in `wanted`, in order.
        """

    def close(self, sequence: int) -> None:
        """Discard what the draft model has stored for the sequence with the id `sequence`. Does nothing for an unknown
        id.
        """


class Speculation:
    """Chooses the drafts of an engine's steps, from texts and, if there is one, from the draft model in the attribute
    `model`. The scheduler creates it, asks it for drafts by `choose`, and reports by `count` what has become of them.

    The draft model reads at most `max_chunk` prompt tokens in a pass.
    """

    def __init__(self, max_chunk: int) -> None:
        self.model: DraftingModel | None = None
        self._max_chunk = max_chunk
        self._overall = Acceptance(_FIRST_SHARE, weight=_WEIGHT, decay=_DECAY_OF_ALL)
        self._acceptances: WeakKeyDictionary[Sequence, Acceptance] = WeakKeyDictionary()
        self._failed: WeakSet[Sequence] = WeakSet()  # sequences that have no drafts of the model after an error
        self._drafted: set[Sequence] = set()  # those for which the model has made the last step's drafts

    def choose(
        self, batch: abc.Sequence[Sequence], may_draft: abc.Sequence[bool], times: StepTimeModel
    ) -> list[abc.Sequence[int]]:
        """Return the draft tokens of each sequence in `batch` for the next step, in order; an empty list for a sequence
        that gets no draft.

        `may_draft` says for each sequence whether it may have a draft. `times` has the measured times of steps. An
        error of the draft model is logged and not raised; the sequences in `batch` then get no more drafts from it.
        """
        self._drafted = set()
        if len(batch) >= MAX_DRAFTED or not times.is_measured:
            return [()] * len(batch)
        drafts = [_from_text(sequence) if may else NO_DRAFT for sequence, may in zip(batch, may_draft, strict=True)]
        if self.model is None and not any(draft.tokens for draft in drafts):
            return [()] * len(batch)  # without the curve, which takes some time after each pass
        steps = times.curve(MAX_DRAFTED)
        if not steps[len(batch)]:
            return [()] * len(batch)
        if self.model is not None:
            usable = [may and sequence not in self._failed for sequence, may in zip(batch, may_draft, strict=True)]
            try:
                return self._with_model(self.model, batch, drafts, usable, times)
            except Exception:  # the engine must not end for what would only save time
                names = [sequence.request.request_id for sequence in batch]
                log.exception("the draft model failed; requests %s go on without it", names)
                for sequence in batch:
                    self.model.close(sequence.id)
                self._failed.update(batch)
        lengths, _ = fit_drafts(drafts, steps)
        return [draft.tokens[:length] for draft, length in zip(drafts, lengths, strict=True)]

    def count(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Record that `num_accepted` of the `num_drafted` tokens in the last draft of `sequence` were accepted. Only
        drafts of the draft model are counted here.
        """
        if sequence in self._drafted:
            self._acceptance(sequence).count(num_drafted, num_accepted)
            self._overall.count(num_drafted, num_accepted)

    def _acceptance(self, sequence: Sequence) -> Acceptance:
        return self._acceptances.setdefault(sequence, Acceptance(self._overall.share, weight=_WEIGHT, decay=_DECAY))

    def _with_model(
        self,
        model: DraftingModel,
        batch: abc.Sequence[Sequence],
        drafts: abc.Sequence[Draft],
        usable: abc.Sequence[bool],
        times: StepTimeModel,
    ) -> list[abc.Sequence[int]]:
        """Return the drafts of a step as `choose` does, for an engine with a draft model. The draft model proposes
        tokens and reads prompts as part of this call.

        `drafts` are the drafts from texts for the sequences in `batch`, and `usable` says for each sequence whether the
        draft model may propose its draft. `times` has the measured times of steps.
        """
        steps, drafting = times.curve(MAX_DRAFTED), [0.0, *model.times.curve(MAX_DRAFTED)[1:]]
        max_unread = _FEW_IN_PARALLEL if model.is_parallel else _FEW
        offers, later = list(drafts), list(drafts)  # now, and once the model has read what it has not read
        behind: dict[int, int] = {}  # how many tokens that are, by the row
        for row, (sequence, draft) in enumerate(zip(batch, drafts, strict=True)):
            k = min(MAX_LENGTH, sequence.num_left - 1, model.room(sequence)) if usable[row] else 0
            model_draft = Draft(
                (), self._acceptance(sequence).share, max_proposed=max(0, k), is_parallel=model.is_parallel
            )
            if model_draft.expected <= draft.expected:
                continue
            # A model that drafts in parallel must still read the accepted tokens of the last draft.
            usual = 1 + round(model_draft.expected) if model.is_parallel else _FEW
            later[row], num_unread = replace(model_draft, num_unread=usual), model.num_unread(sequence)
            if num_unread <= max_unread:
                offers[row] = replace(model_draft, num_unread=num_unread)
            behind[row] = num_unread - 1
        (lengths_without, rate_without), (lengths, per_second) = (
            fit_drafts(drafts, steps),
            fit_drafts(offers, steps, drafting),
        )
        if rate_without > per_second:
            offers, lengths, per_second = list(drafts), lengths_without, rate_without
        wanted = [
            (sequence, length)
            for sequence, offer, length in zip(batch, offers, lengths, strict=True)
            if length and offer.max_proposed
        ]
        drafted = {sequence for sequence, _ in wanted}
        idle = [self._acceptance(sequence) for sequence in batch if sequence not in drafted]
        for acceptance in idle if drafted else [*idle, self._overall]:
            acceptance.forget(_FORGOTTEN)
        later_lengths, later_rate = fit_drafts(later, steps, drafting)
        behind = {row: number for row, number in behind.items() if later_lengths[row] and batch[row] not in drafted}
        # Reading is expected to save this number of seconds for each further token of the batch's answers.
        saved = 1 / per_second - 1 / later_rate
        tokens_left = sum(min(sequence.num_left, times.tokens_left(sequence.num_produced)) for sequence in batch)
        pays = tokens_left * saved > _MIN_RETURN * model.times.seconds_to_read(sum(behind.values()))
        is_behind = max(behind.values(), default=0) >= max_unread
        chunks = self._chunks(model, batch, behind, steps[len(batch)]) if is_behind and pays else []
        drafted_tokens: dict[Sequence, list[int]] = {}
        if wanted or chunks:
            proposed = model.propose(wanted, chunks)
            drafted_tokens = dict(zip((sequence for sequence, _ in wanted), proposed, strict=True))
        self._drafted = {sequence for sequence, tokens in drafted_tokens.items() if tokens}
        return [
            drafted_tokens.get(sequence, []) if offer.max_proposed else offer.tokens[:length]
            for sequence, offer, length in zip(batch, offers, lengths, strict=True)
        ]

    def _chunks(
        self, model: DraftingModel, batch: abc.Sequence[Sequence], behind: dict[int, int], seconds: float
    ) -> list[tuple[Sequence, int]]:
        """Choose the sequences of which the draft model reads tokens now, so that this takes about `seconds` seconds.
        Returns each chosen sequence with the number of its tokens to read.

        `behind` has the number of tokens that the draft model has not read, without the newest one, by the index of the
        sequence in `batch`.
        """
        budget = min(self._max_chunk, max(MIN_CHUNK, int(model.times.tokens_read_in(seconds))))
        chunks: list[tuple[Sequence, int]] = []
        for row, number in behind.items():
            if budget > 0:
                chunks.append((batch[row], min(number, budget)))
                budget -= chunks[-1][1]
        return chunks


def _from_text(sequence: Sequence) -> Draft:
    """Return the draft for `sequence` that needs no draft model: tokens that the end of its reasoning or its grammar
    forces, or tokens from texts. An error is logged, and the draft is then empty.
    """
    try:
        forced = [] if sequence.reasoning is None else sequence.reasoning.forced
        if not forced and sequence.guide is not None:
            forced = sequence.guide.forced()
        return sequence.text_drafts.propose(sequence.tokens, sequence.num_left - 1, forced)
    except Exception:  # the engine must not end for what would only save time
        log.exception("request %s: its next tokens could not be drafted", sequence.request.request_id)
        return NO_DRAFT
