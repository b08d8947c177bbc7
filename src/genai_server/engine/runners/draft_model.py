"""Draft models for speculative decoding: a smaller model (`DraftModel`), or a head of the main model itself
(`MtpHead`). Each drafts tokens, which the main model then verifies, and runs as a batch of its own.

For each sequence that it has read, a draft model has a copy of the sequence in its own KV cache. It reads the tokens
that it drafts as if they belonged to the answer. After the main model has verified them, rejected ones are removed from
the copy.

A draft model that was trained to draft in parallel (PARD) makes all tokens of a draft in one pass. It predicts the
first draft token from the sequence's newest token, and each further one from a mask token that it reads after that.
Mask tokens do not count as read. Drafted tokens are not read in this pass, so the accepted ones are read with the next
draft.

A head for multi-token prediction (MTP) is a single layer. For each token of a sequence it reads the token and the
hidden state from which the main model computed the logits for that token, and returns logits for the token after it. So
the head reads what the main model has read, one token later. For the second and further tokens of a draft, the main
model has no hidden states yet; the head's own hidden states take their place.

The hidden states that passes of the main model compute are stored until the head reads them, for at most `MAX_KEPT`
tokens of each sequence. If the hidden states of a sequence's first tokens are missing, because its beginning was a
cached prefix or because they were discarded beyond this limit, the head reads the sequence from the first token with a
hidden state on. That changes only how many drafts are accepted.
"""

import time
from collections import abc
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.kv_cache.layout import Row
from genai_server.engine.runners.base import open_bare, run_pass
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, StepTimeModel
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.timing import Clock


@dataclass
class Copy:
    """A draft model's copy of a sequence of the main model. The copy runs in the draft model's own batch, and
    DraftModel creates it for the first draft.

    The first `num_confirmed` tokens of the copy are known to be tokens of the sequence. Later ones are draft tokens,
    which the main model may reject.
    """

    # The copy, whose id is that of the sequence itself.
    sequence: Sequence
    # How many of the copy's tokens are certainly those of the sequence.
    num_confirmed: int


class DraftModel:
    """A small model that drafts tokens for speculative decoding, for any number of sequences at once. It always drafts
    the token with the highest logit. It runs on a batched `runner` of its own; methods raise RunnerFailed if that
    runner does.

    `name` is the name of the draft model's directory, and `kv_share` the part, from 0 to 1, of the memory for KV caches
    that the draft model has. Only the first `vocab_size` tokens of the vocabulary are drafted, because the draft
    model's vocabulary may be padded with further ones. `mask_token` is the id of the mask token of a model that drafts
    all tokens of a draft in one pass; None for other models.
    """

    # Whether it may reuse a cached prefix for a sequence that may.
    reuses_past = True

    def __init__(
        self,
        runner: BatchedRunner,
        vocab_size: int,
        *,
        mask_token: int | None = None,
        name: str = "",
        kv_share: float = 0.5,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.runner = runner
        self.name = name
        self.kv_share = kv_share
        self.times = StepTimeModel()
        self.is_parallel = mask_token is not None
        self._mask = [] if mask_token is None else [mask_token]
        self._vocab_size = min(vocab_size, runner.model.vocab_size)
        self.clock = clock
        self._copies: dict[int, Copy] = {}  # by the id of the sequence
        self._found: dict[int, int] = {}  # by the same, cached tokens of sequences without a copy

    def room(self, sequence: Sequence) -> int:
        """Return how many tokens can be drafted for a sequence at most, because of the maximum length of the draft
        model's sequences.

        This is 0 for a sequence with images or audio, and if there is no KV cache slot or memory for the draft model's
        copy of the sequence.
        """
        if sequence.images is not None or sequence.audio is not None:
            return 0
        if sequence.id not in self._copies and not self._can_open(sequence):
            return 0
        return max(0, self.runner.model.max_length - len(sequence.tokens))

    def num_unread(self, sequence: Sequence) -> int:
        """Return how many of a sequence's tokens the draft model must read before it can draft.

        These are the tokens that are not in the draft model's KV cache, and always the newest token, whose logits give
        the first draft token.
        """
        copy = self._copies.get(sequence.id)
        if copy is not None:
            return len(self.tokens_of(sequence)) - self._num_common(copy, self.tokens_of(sequence))
        if sequence.id not in self._found:
            num_cached = self.runner.slots.find(sequence.tokens, sequence.cache_salt) if sequence.reuses_past else 0
            self._found[sequence.id] = num_cached
        return max(1, len(sequence.tokens) - self._found[sequence.id])

    def propose(
        self, wanted: abc.Sequence[tuple[Sequence, int]], to_read: abc.Sequence[tuple[Sequence, int]]
    ) -> list[list[int]]:
        """Draft tokens for the sequences in `wanted`, each of which comes with the maximum number of its draft tokens.
        Returns the drafts in the order of `wanted`.

        `to_read` has sequences that get no draft in this step, each with the number of its tokens that the draft model
        reads meanwhile. The first pass reads the new tokens of all sequences. A model that drafts in parallel runs only
        this pass; others run one pass for each token of the longest draft. A sequence for which there is no slot or
        memory gets an empty draft.
        """
        chunks = [
            ScheduledChunk.next(copy, number) for sequence, number in to_read if (copy := self._updated(sequence))
        ]
        drafts: dict[int, list[int]] = {sequence.id: [] for sequence, _ in wanted}
        missing: dict[int, int] = {}  # by the id of a sequence, the tokens that its draft may still have
        for sequence, length in wanted:
            copy = self._updated(sequence)
            # Unless its cached prefix has been evicted since it was found.
            if copy is not None and copy.num_unread <= MAX_DRAFTED:
                missing[copy.id] = length
                chunks.append(ScheduledChunk.next(copy, copy.num_unread, draft=self._mask * (length - 1)))
        while chunks := [chunk for chunk in chunks if self._reserve_memory(chunk)]:
            started = self.clock()
            scores = run_pass(self.runner, chunks)
            drafting = [
                (chunk, chunk_scores)
                for chunk, chunk_scores in zip(chunks, scores, strict=True)
                if chunk.sequence.id in missing
            ]
            for chunk, chunk_scores in drafting:
                copy, tokens = chunk.sequence, self.best_tokens(chunk.sequence, chunk_scores)
                drafts[copy.id] += tokens
                missing[copy.id] -= len(tokens)
                if not self.is_parallel:
                    copy.tokens += tokens
            num_drafting = sum(chunk.num_tokens for chunk, _ in drafting)
            self.times.passed(num_drafting, sum(chunk.num_tokens for chunk in chunks), self.clock() - started)
            chunks = [ScheduledChunk.next(chunk.sequence) for chunk, _ in drafting if missing[chunk.sequence.id]]
        return list(drafts.values())

    def best_tokens(self, copy: Sequence, scores: Scores) -> list[int]:
        """Return the tokens to draft after the tokens of `copy`: for each position of `scores`, the token with the
        highest logit.
        """
        best: list[int] = scores.logits[:, : self._vocab_size].argmax(axis=-1).tolist()
        return best

    def close(self, sequence: int) -> None:
        """Discard the draft model's copy of the sequence with the id `sequence`, if there is one. The keys and values
        of its confirmed tokens may stay in the KV cache as a cached prefix.
        """
        self._found.pop(sequence, None)
        if (copy := self._copies.pop(sequence, None)) is not None:
            # Tokens that the answer may not have are no use to others.
            self.runner.slots.cut(sequence, min(copy.num_confirmed, copy.sequence.num_read))
        self.runner.close(sequence)  # also if it could not be opened completely

    def fit(self) -> None:
        """Discard copies of sequences, the newest ones first, until the remaining ones fit into the memory for the KV
        cache. The engine calls this when that memory has become smaller.
        """
        while self._copies and not self.runner.slots.has_room(newest := next(reversed(self._copies)), 0):
            self.close(newest)

    def _can_open(self, sequence: Sequence) -> bool:
        """Whether the draft model has a free KV cache slot and memory for a copy of `sequence`,
        which has no copy yet.
        """
        has_slot = len(self._copies) < self.runner.abilities.max_rows
        return has_slot and self.runner.slots.has_room(sequence.id, len(sequence.tokens))

    def _reserve_memory(self, chunk: ScheduledChunk) -> bool:
        """Reserve KV cache memory for the tokens of a chunk of a copy. Returns whether there is enough; if not, the
        copy is discarded.
        """
        slots, id = self.runner.slots, chunk.sequence.id
        if not slots.has_room(id, chunk.num_tokens):
            self.close(id)
            return False
        slots.reserve(id, chunk.num_tokens)
        return True

    def tokens_of(self, sequence: Sequence) -> list[int]:
        """Return the tokens that the draft model reads for a sequence. They are all tokens of the sequence here; a
        subclass may leave out the first ones.
        """
        return sequence.tokens

    def _num_common(self, copy: Copy, tokens: list[int]) -> int:
        """Return how many tokens, counted from the first one, the draft model has read in `copy` that are equal to
        `tokens`, the present tokens of the sequence. The newest token always counts as unread.
        """
        maximum = min(copy.sequence.num_read, len(tokens) - 1)
        common = min(copy.num_confirmed, maximum)
        while common < maximum and copy.sequence.tokens[common] == tokens[common]:
            common += 1
        return common

    def _updated(self, sequence: Sequence) -> Sequence | None:
        """Give the draft model's copy of a sequence the present tokens of the sequence, after rejected draft tokens
        were removed. Creates the copy if there is none.

        Returns the copy; None if there is no slot or memory for a new one.
        """
        copy = self._copies.get(sequence.id)
        if copy is not None and self.runner.must_reopen(copy.sequence):
            self.close(sequence.id)
            copy = None
        if copy is None:
            return self._opened(sequence) if self._can_open(sequence) else None
        draft_sequence, tokens = copy.sequence, self.tokens_of(sequence)
        num_common = self._num_common(copy, tokens)
        if num_common < draft_sequence.num_read:
            self.runner.slots.cut(draft_sequence.id, num_common)
        draft_sequence.tokens[num_common:] = tokens[num_common:]
        draft_sequence.num_read = num_common
        copy.num_confirmed = len(tokens)
        return draft_sequence

    def _opened(self, sequence: Sequence) -> Sequence:
        """Create the draft model's copy of a sequence and open it on the draft model's runner. Returns the copy."""
        opened = open_bare(
            self.runner,
            list(self.tokens_of(sequence)),
            self.runner.model.max_length,
            id=sequence.id,
            reuses_past=self.reuses_past and sequence.reuses_past,
            cache_salt=sequence.cache_salt,
            low_priority=sequence.low_priority,
        )
        self._copies[sequence.id] = Copy(opened, len(opened.tokens))
        return opened


# States of tokens that the head has not read, of each sequence.
MAX_KEPT = 1024


@dataclass
class _States:
    """Hidden states that the main model has computed for the tokens of one sequence, and that its head for multi-token
    prediction will read to draft further tokens.

    The states of all tokens that the head has not read yet are included. States of earlier tokens may still be there,
    because they are discarded in the groups in which passes have computed them.
    """

    # Index of the first token of the sequence that the head has read or will read.
    first: int
    # The states are those of the tokens from `start` to before `end`, counted from the beginning of the sequence.
    start: int
    end: int
    # Consecutive arrays of states in that order, each of shape [tokens, hidden_size].
    parts: list[NDArray[Any]] = field(default_factory=list)

    def cut(self, end: int) -> None:
        """Discard the stored hidden states of the token with the index `end` in the sequence and of
        all later tokens.
        """
        while self.parts and end < self.end:
            last = self.parts.pop()
            self.end -= len(last)
            if self.end < end:
                self.append(last[: end - self.end])

    def append(self, states: NDArray[Any]) -> None:
        """Store copies of the hidden states [tokens, hidden_size] of the tokens that follow the last stored one.

        They are copied because a view would keep the states of all rows of a pass in memory.
        """
        self.parts.append(states.copy())
        self.end += len(states)

    def forget_before(self, token: int) -> None:
        """Discard hidden states of tokens before the one with the index `token`.

        The states that a pass has computed are discarded together, so some states before that token may stay.
        """
        while self.parts and self.start + len(self.parts[0]) <= token:
            self.start += len(self.parts.pop(0))

    def of(self, token: int, number: int) -> NDArray[Any]:
        """Return the stored hidden states [number, hidden_size] of `number` consecutive tokens, the first of which has
        the index `token` in the sequence.
        """
        if len(self.parts) > 1:
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0][token - self.start :][:number]


class HeadRunner(BatchedRunner):
    """The runner of a model's head for multi-token prediction (MTP), a layer that drafts tokens. In addition to tokens,
    it reads the hidden states that the main model has computed for them.

    `head` is the MtpHead that stores these hidden states. While it is None, as in the warm-up, zeros are read instead.
    """

    head: "MtpHead | None" = None

    def _row(self, chunk: ScheduledChunk) -> Row:
        row = super()._row(chunk)
        states = None if self.head is None else self.head.states_of(chunk.sequence)
        if states is None:
            return row
        first = states.first + row.num_cached
        axes = max(1, self.graph.position_axes)
        positions = np.tile(np.arange(first, first + chunk.num_tokens), (axes, 1))
        return replace(row, positions=positions, hidden=states.of(first, chunk.num_tokens))


class MtpHead(DraftModel):
    """Drafts tokens with the model's own head for multi-token prediction (MTP) in place of a separate draft model.

    It stores the hidden states that the runner `main` of the model computes, until the head reads them, and drafts for
    the sequences of this runner. `runner` runs the head, and `how` are further arguments of DraftModel.
    """

    reuses_past = False  # what it knows of a sequence depends on where it began to read

    def __init__(self, runner: HeadRunner, main: BatchedRunner, **how: Any) -> None:
        super().__init__(runner, main.model.vocab_size, **how)
        self._states: dict[int, _States] = {}  # by the id of the sequence
        self._main = main
        main.take_hidden, runner.take_hidden, runner.head = self._take, self._store_own_state, self

    def states_of(self, copy: Sequence) -> _States | None:
        """Return the hidden states that the head reads for `copy`, its copy of a sequence; None for a sequence that no
        client has requested, as in the warm-up.
        """
        return self._states.get(copy.id)

    def room(self, sequence: Sequence) -> int:
        states = self._states.get(sequence.id)
        if states is None or not states.start <= len(sequence.tokens) - 2 < states.end:
            return 0
        return super().room(sequence)

    def num_unread(self, sequence: Sequence) -> int:
        self._restart_behind_gap(sequence)
        states = self._states[sequence.id]
        if sequence.id not in self._copies:
            return len(sequence.tokens) - 1 - states.start
        return super().num_unread(sequence)

    def tokens_of(self, sequence: Sequence) -> list[int]:
        return sequence.tokens[self._states[sequence.id].first + 1 :]

    def close(self, sequence: int) -> None:
        self._states.pop(sequence, None)
        super().close(sequence)

    def _take(self, sequence: Sequence, start: int, states: NDArray[Any]) -> None:
        """Store the hidden states of tokens that the main model has read in a pass, if their sequence may have drafts.

        `states` [tokens, hidden_size] are those of consecutive tokens of `sequence`, the first of which has the index
        `start`.
        """
        is_bare = sequence.id < 0
        if is_bare or sequence.images is not None or not self._main.may_draft(sequence):
            return
        stored = self._states.get(sequence.id)
        if stored is not None:
            stored.cut(start)
        if stored is None or stored.end != start:
            super().close(sequence.id)
            stored = self._states[sequence.id] = _States(start, start, start)
        stored.append(states)
        stored.forget_before(stored.end - MAX_KEPT)

    def _store_own_state(self, copy: Sequence, num_before: int, states: NDArray[Any]) -> None:
        """Store the last hidden state that the head has computed in a pass. The head reads it with the next draft
        token, for which the main model has not computed a hidden state yet.

        `states` [tokens, hidden_size] are the head's hidden states of the tokens of `copy` that come after its first
        `num_before` tokens.
        """
        stored = self._states.get(copy.id)
        if stored is not None and stored.end == stored.first + num_before + len(states):
            stored.append(states[-1:])

    def _num_common(self, copy: Copy, tokens: list[int]) -> int:
        """Return how many tokens of `copy` the head has read with hidden states of the main model, at most all `tokens`
        but the newest one.

        Later tokens must be read again, because they were read with hidden states of the head itself.
        """
        return min(_num_confirmed(copy), len(tokens) - 1)

    def _updated(self, sequence: Sequence) -> Sequence | None:
        self._restart_behind_gap(sequence)
        states = self._states[sequence.id]
        states.cut(len(sequence.tokens) - 1)
        copy = self._copies.get(sequence.id)
        if copy is None:
            states.first = states.start
        else:
            states.forget_before(states.first + _num_confirmed(copy))
        return super()._updated(sequence)

    def _restart_behind_gap(self, sequence: Sequence) -> None:
        """Discard the head's copy of a sequence if hidden states that it must read next are no longer stored. A new
        copy then begins with the first stored state.
        """
        copy, states = self._copies.get(sequence.id), self._states[sequence.id]
        if copy is not None and states.first + _num_confirmed(copy) < states.start:
            super().close(sequence.id)


def _num_confirmed(copy: Copy) -> int:
    """Return how many tokens of a draft model's copy have been read and are known to be tokens of the original
    sequence.
    """
    return min(copy.num_confirmed, copy.sequence.num_read)
