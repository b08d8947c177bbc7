"""A smaller model, or a head of the model, that drafts the next tokens of sequences, with a batch and KV cache slots of
its own.

For each sequence that it has read, its runner has one of its own, with the same tokens. Drafted tokens are read as if
the answer had them. Once they are verified, those that the answer does not have are cut off.

A head for multi-token prediction (MTP) is a single layer. For each token of a sequence it reads the state that the
model had before it, the one that the model's own logits are made of, and gives logits for the token behind it. So it
reads what the model has read, one token later. For the second token of a draft and further ones, the model has no
states yet; the head's own take their place.

States are kept from the passes of the model until the head reads them, at most `MAX_KEPT` of each sequence. A sequence
whose first states are missing, because a cached prefix was not read or because too many were kept, is read from the
first one on. Drafts are only proposals, so this changes how many are accepted, and nothing else.
"""

import time
from collections.abc import Sequence as Several
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
    """A sequence as the draft model has it."""

    # With the same id.
    sequence: Sequence
    # How many of its tokens the answer has for certain.
    num_sure: int


class DraftModel:
    """Drafts greedily for any number of sequences at once. Raises RunnerFailed where its runner does.

    `name` is that of its directory, and `kv_share` its share of the memory for keys and values. Only the first
    `vocab_size` tokens are drafted: models may be padded with further ones.
    """

    # Whether it may reuse a cached prefix for a sequence that may.
    reuses_past = True

    def __init__(
        self,
        runner: BatchedRunner,
        vocab_size: int,
        *,
        name: str = "",
        kv_share: float = 0.5,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.runner = runner
        self.name = name
        self.kv_share = kv_share
        self.times = StepTimeModel()
        self._vocab_size = min(vocab_size, runner.model.vocab_size)
        self.clock = clock
        self._copies: dict[int, Copy] = {}  # by the id of the sequence
        self._found: dict[int, int] = {}  # by the same, cached tokens of sequences without a copy

    def room(self, sequence: Sequence) -> int:
        """The most tokens that can be drafted for a sequence.

        It is 0 for one with images or sound, and if there is no slot or memory for it.
        """
        if sequence.images is not None or sequence.sound is not None:
            return 0
        if sequence.id not in self._copies and not self._can_open(sequence):
            return 0
        return max(0, self.runner.model.max_length - len(sequence.tokens))

    def num_unread(self, sequence: Sequence) -> int:
        """How many of a sequence's tokens are unread, at least 1."""
        copy = self._copies.get(sequence.id)
        if copy is not None:
            return len(self.tokens_of(sequence)) - self._num_common(copy, self.tokens_of(sequence))
        if sequence.id not in self._found:
            found = self.runner.slots.find(sequence.tokens, sequence.cache_salt) if sequence.reuses_past else 0
            self._found[sequence.id] = found
        return max(1, len(sequence.tokens) - self._found[sequence.id])

    def propose(self, wanted: Several[tuple[Sequence, int]], to_read: Several[tuple[Sequence, int]]) -> list[list[int]]:
        """Propose at most this number of tokens for each wanted sequence, and read the tokens of `to_read`.

        `to_read` has sequences without a draft in this step, each with the number of its tokens to read.

        The first pass reads what is new of all of them. A sequence for which there is no slot or memory has no draft.
        """
        chunks = [
            ScheduledChunk.next(copy, number) for sequence, number in to_read if (copy := self._updated(sequence))
        ]
        made: dict[int, list[int]] = {sequence.id: [] for sequence, _ in wanted}
        missing: dict[int, int] = {}  # by the id of a sequence, the tokens that its draft may still have
        for sequence, length in wanted:
            copy = self._updated(sequence)
            # Unless its cached prefix has been evicted since it was found.
            if copy is not None and copy.num_unread <= MAX_DRAFTED:
                missing[copy.id] = length
                chunks.append(ScheduledChunk.next(copy, copy.num_unread))
        while chunks := [chunk for chunk in chunks if self._take_room(chunk)]:
            started = self.clock()
            scores = run_pass(self.runner, chunks)
            drafting = [
                (chunk, found) for chunk, found in zip(chunks, scores, strict=True) if chunk.sequence.id in missing
            ]
            for chunk, found in drafting:
                copy = chunk.sequence
                copy.tokens.append(self.best_token(copy, found))
                made[copy.id].append(copy.tokens[-1])
                missing[copy.id] -= 1
            num_drafting = sum(chunk.num_tokens for chunk, _ in drafting)
            self.times.passed(num_drafting, sum(chunk.num_tokens for chunk in chunks), self.clock() - started)
            chunks = [ScheduledChunk.next(chunk.sequence) for chunk, _ in drafting if missing[chunk.sequence.id]]
        return list(made.values())

    def best_token(self, copy: Sequence, scores: Scores) -> int:
        """The token that is drafted behind the tokens of a copy."""
        return int(scores.last[: self._vocab_size].argmax())

    def close(self, sequence: int) -> None:
        """Forget the sequence with this id, if it is known. What was read of it may stay cached."""
        self._found.pop(sequence, None)
        if (copy := self._copies.pop(sequence, None)) is not None:
            # Tokens that the answer may not have are no use to others.
            self.runner.slots.cut(sequence, min(copy.num_sure, copy.sequence.num_read))
        self.runner.close(sequence)  # also if it could not be opened completely

    def fit(self) -> None:
        """Forget the newest sequences until the memory holds the others, after its size has changed."""
        while self._copies and not self.runner.slots.has_room(newest := next(reversed(self._copies)), 0):
            self.close(newest)

    def _can_open(self, sequence: Sequence) -> bool:
        """Whether there is a slot for another sequence, and memory for its tokens."""
        has_slot = len(self._copies) < self.runner.abilities.max_rows
        return has_slot and self.runner.slots.has_room(sequence.id, len(sequence.tokens))

    def _take_room(self, chunk: ScheduledChunk) -> bool:
        """Take the memory for a chunk; returns whether there is enough. If not, its sequence is forgotten."""
        slots, id = self.runner.slots, chunk.sequence.id
        if not slots.has_room(id, chunk.num_tokens):
            self.close(id)
            return False
        slots.reserve(id, chunk.num_tokens)
        return True

    def tokens_of(self, sequence: Sequence) -> list[int]:
        """The tokens that the copy of a sequence has."""
        return sequence.tokens

    def _num_common(self, copy: Copy, tokens: list[int]) -> int:
        """How many of a sequence's tokens its copy has read. At least one, the newest, has to be read."""
        most = min(copy.sequence.num_read, len(tokens) - 1)
        common = min(copy.num_sure, most)
        while common < most and copy.sequence.tokens[common] == tokens[common]:
            common += 1
        return common

    def _updated(self, sequence: Sequence) -> Sequence | None:
        """The copy of a sequence, with its tokens, of which those that it has not read are next.

        None if there is no slot or memory for it.
        """
        copy = self._copies.get(sequence.id)
        if copy is not None and self.runner.must_reopen(copy.sequence):
            self.close(sequence.id)
            copy = None
        if copy is None:
            return self._opened(sequence) if self._can_open(sequence) else None
        found, tokens = copy.sequence, self.tokens_of(sequence)
        num_common = self._num_common(copy, tokens)
        if num_common < found.num_read:
            self.runner.slots.cut(found.id, num_common)
        found.tokens[num_common:] = tokens[num_common:]
        found.num_read = num_common
        copy.num_sure = len(tokens)
        return found

    def _opened(self, sequence: Sequence) -> Sequence:
        """A new copy of a sequence."""
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
    """The states of a sequence's tokens that the head has not read, and possibly some before them."""

    # The first token that the head reads of the sequence, if it reads any.
    first: int
    # The states are those of the tokens from `start` to before `end`, counted from the beginning of the sequence.
    start: int
    end: int
    # Consecutive arrays of states in that order, each of shape [tokens, hidden_size].
    parts: list[NDArray[Any]] = field(default_factory=list)

    def cut(self, end: int) -> None:
        """Forget the states from a token on."""
        while self.parts and end < self.end:
            last = self.parts.pop()
            self.end -= len(last)
            if self.end < end:
                self.append(last[: end - self.end])

    def append(self, states: NDArray[Any]) -> None:
        """Add copies of the states of the next tokens. A view would keep those of all rows of its pass."""
        self.parts.append(states.copy())
        self.end += len(states)

    def forget_before(self, token: int) -> None:
        """Forget states before a token, except for some of the same pass."""
        while self.parts and self.start + len(self.parts[0]) <= token:
            self.start += len(self.parts.pop(0))

    def of(self, token: int, number: int) -> NDArray[Any]:
        """The states of a number of tokens."""
        if len(self.parts) > 1:
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0][token - self.start :][:number]


class HeadRunner(BatchedRunner):
    """A batch of a head's graph. `head` knows what it reads besides tokens; without it, that is zeros."""

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
    """Drafts greedily for any number of sequences of the runner whose model it belongs to."""

    reuses_past = False  # what it knows of a sequence depends on where it began to read

    def __init__(self, runner: HeadRunner, main: BatchedRunner, **how: Any) -> None:
        super().__init__(runner, main.model.vocab_size, **how)
        self._states: dict[int, _States] = {}  # by the id of the sequence
        self._main = main
        main.take_hidden, runner.take_hidden, runner.head = self._take, self._take_own, self

    def states_of(self, copy: Sequence) -> _States | None:
        """The states of a sequence that the head has; None for one of its own, without a client."""
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
        """Keep the states of tokens that the model has read, if drafts may follow them."""
        is_bare = sequence.id < 0
        if is_bare or sequence.images is not None or not self._main.may_draft(sequence):
            return
        kept = self._states.get(sequence.id)
        if kept is not None:
            kept.cut(start)
        if kept is None or kept.end != start:
            super().close(sequence.id)
            kept = self._states[sequence.id] = _States(start, start, start)
        kept.append(states)
        kept.forget_before(kept.end - MAX_KEPT)

    def _take_own(self, copy: Sequence, num_before: int, states: NDArray[Any]) -> None:
        """Let the last of the head's own states stand for the model's next one, which it has not computed."""
        kept = self._states.get(copy.id)
        if kept is not None and kept.end == kept.first + num_before + len(states):
            kept.append(states[-1:])

    def _num_common(self, copy: Copy, tokens: list[int]) -> int:
        """Tokens behind those that were sure were read with the head's own states."""
        return min(_num_sure(copy), len(tokens) - 1)

    def _updated(self, sequence: Sequence) -> Sequence | None:
        self._restart_behind_gap(sequence)
        states = self._states[sequence.id]
        states.cut(len(sequence.tokens) - 1)
        copy = self._copies.get(sequence.id)
        if copy is None:
            states.first = states.start
        else:
            states.forget_before(states.first + _num_sure(copy))
        return super()._updated(sequence)

    def _restart_behind_gap(self, sequence: Sequence) -> None:
        """Forget what was read of a sequence if the states behind that were forgotten."""
        copy, states = self._copies.get(sequence.id), self._states[sequence.id]
        if copy is not None and states.first + _num_sure(copy) < states.start:
            super().close(sequence.id)


def _num_sure(copy: Copy) -> int:
    """How many tokens were read of those that the answer has for certain, with the model's own states."""
    return min(copy.num_sure, copy.sequence.num_read)
