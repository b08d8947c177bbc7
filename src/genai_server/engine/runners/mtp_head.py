"""A model's head for multi-token prediction (MTP), which drafts like a draft model, with a batch of its own.

Such a head is a single layer. For each token of a sequence it reads the state that the model had before it, the one
that the model's own logits are made of, and gives logits for the token behind it. So it reads what the model has read,
one token later. For the second token of a draft and further ones, the model has no states yet; the head's own take
their place.

States are kept from the passes of the model until the head reads them, at most `MAX_KEPT` of each sequence. A sequence
whose first states are missing, because a cached prefix was not read or because too many were kept, is read from the
first one on. Drafts are only proposals, so this changes how many are accepted, and nothing else.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.kv_cache.layout import Row
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.runners.draft_model import Copy, DraftModel
from genai_server.engine.scheduling.scheduler_output import Read
from genai_server.engine.sequence import Sequence

# States of tokens that the head has not read, of each sequence.
MAX_KEPT = 1024


@dataclass
class _States:
    """The states of a sequence's tokens that the head has not read, and possibly some before them."""

    # The first token that the head reads of the sequence, if it reads any.
    first: int
    # The token whose state comes first.
    start: int
    end: int
    # [tokens, hidden_size] each.
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

    def _row(self, read: Read) -> Row:
        row = super()._row(read)
        states = None if self.head is None else self.head.states_of(read.sequence)
        if states is None:
            return row
        first = states.first + row.num_cached
        axes = max(1, self.graph.position_axes)
        positions = np.tile(np.arange(first, first + read.num_tokens), (axes, 1))
        return replace(row, positions=positions, hidden=states.of(first, read.num_tokens))


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
