"""What the scheduler passes to the runners, which run the model: a step (`Step`), which has a chunk of tokens for each
sequence (`ScheduledChunk`). Also the limits by which the scheduler decides: KV cache memory (`KvMemory`, `KvBudget`)
and settings (`StepPolicy`).
"""

import sys
import time
from collections import abc
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct

from genai_server.engine.scheduling.drafts import AnswerMemory
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import PooledText
from genai_server.timing import Clock


class ScheduledChunk(Struct, frozen=True):  # made for each row of each pass, in a third of the time of a dataclass
    """The tokens of one sequence that a forward pass reads: a part of its prompt, or its newest token and a draft. The
    scheduler creates it, and the runner reads it and then calls `count`.
    """

    sequence: Sequence
    # The sequence's next unread tokens, followed by those of the draft.
    tokens: abc.Sequence[int]
    # Draft tokens, which may follow those of the sequence.
    draft: abc.Sequence[int] = ()
    # The texts that the tokens consist of, where texts are pooled.
    texts: abc.Sequence[PooledText] = ()
    # Whether the sequence was decoding when the step was made. Stored, because the pass changes the sequence.
    decodes: bool = False
    # Whether the logits after each token are wanted, or only those after the last one.
    positions: bool = False

    @classmethod
    def next(
        cls,
        sequence: Sequence,
        num_tokens: int = 1,
        *,
        draft: abc.Sequence[int] = (),
        texts: abc.Sequence[PooledText] = (),
    ) -> "ScheduledChunk":
        """Return a chunk with the next `num_tokens` unread tokens of `sequence`, followed by the tokens of `draft`.

        For a model that returns vectors or scores, `texts` are the texts of which these tokens consist.
        """
        first = sequence.num_read
        tokens = [*sequence.tokens[first : first + num_tokens], *draft]
        return cls(sequence, tokens, draft, texts, sequence.is_decoding, sequence.wants_positions)

    @property
    def model_tokens(self) -> abc.Sequence[int]:
        """The chunk's tokens as the model reads them: the token that the model has for images replaces the negative ids
        that the engine gives to features of images.
        """
        images = self.sequence.images
        return self.tokens if images is None else images.model_tokens(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the pass reads for this sequence, including those of the draft."""
        return len(self.tokens)

    def count(self) -> None:
        """Count the chunk's tokens, without those of the draft, as read in the sequence. Called after the pass."""
        self.sequence.num_read += len(self.tokens) - len(self.draft)
        self.sequence.num_texts += len(self.texts)


def is_low_priority(chunks: abc.Sequence[ScheduledChunk]) -> bool:
    """Return whether all of `chunks` belong to sequences of low priority."""
    return all(chunk.sequence.low_priority for chunk in chunks)


@dataclass(frozen=True)
class Step:
    """One forward pass, as the scheduler has chosen it: a chunk of tokens for each sequence that takes part in it."""

    chunks: list[ScheduledChunk]

    @cached_property
    def sequences(self) -> list[Sequence]:
        """The sequences that take part in the pass."""
        return [chunk.sequence for chunk in self.chunks]

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens that the pass reads, of all sequences together."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @cached_property
    def decodes(self) -> bool:
        """Whether the pass only continues answers: it reads newest tokens and drafts, and no part of a prompt."""
        return all(chunk.decodes for chunk in self.chunks)

    @property
    def is_chunk(self) -> bool:
        """Whether the pass reads a part of the prompt of one sequence, and nothing else. Such a pass may be
        interrupted.
        """
        return len(self.chunks) == 1 and not self.decodes

    @cached_property
    def is_low_priority(self) -> bool:
        """Whether all sequences of the pass have low priority, so that the pass may be interrupted for other
        sequences.
        """
        return is_low_priority(self.chunks)


class KvBudget(NamedTuple):
    """An amount of KV cache: a number of slots, and a number of the memory pages that all slots share."""

    slots: int = 0
    # Pages that slots share.
    pages: int = 0


NOTHING_RESERVED = KvBudget()


@dataclass(eq=False)
class KvMemory:
    """The size of the memory that KV cache slots share, in pages of a fixed number of tokens. Each slot has one page of
    its own, and gets other pages when its tokens need them.

    It is created when the model is loaded. Scheduler, slots and runner then have the same object, so a change of the
    size takes effect for all of them at once.
    """

    # Number of tokens in a page. Their keys, or their values, in one layer and head fill pages of the operating system
    # exactly.
    page_tokens: int
    # Pages that all slots share.
    num_pages: int
    # Number of pages of a checkpoint, a copy of a sequence's recurrent states; 0 for a model without such states.
    checkpoint_pages: int = 0
    # Bytes of a page; 0 if the size is fixed.
    page_bytes: int = 0
    # Bytes of memory that the slots have in addition to shared pages.
    own_bytes: int = 0
    # Number of pages that the longest sequence needs, and number beyond which pages are of no use even to a full batch
    # of the longest sequences.
    min_pages: int = 0
    max_pages: int = 0

    @property
    def min_bytes(self) -> int:
        """The smallest number of bytes that `resize` can set: what the longest sequence needs."""
        return self.own_bytes + self.min_pages * self.page_bytes

    @property
    def max_bytes(self) -> int:
        """The number of bytes beyond which more memory is of no use, because a full batch of the longest sequences fits
        into it.
        """
        return self.own_bytes + self.max_pages * self.page_bytes

    def resize(self, num_bytes: int) -> None:
        """Set the size of the memory to `num_bytes` bytes, but at least to what the longest sequence needs. Does
        nothing if the size is fixed (`page_bytes` is 0).
        """
        if self.page_bytes:
            self.num_pages = max(self.min_pages, (num_bytes - self.own_bytes) // self.page_bytes)

    def pages(self, num_tokens: int) -> int:
        """Return how many shared pages a slot needs, in addition to its own page, when it has `num_tokens` tokens and
        there must be room for one more.
        """
        return num_tokens // self.page_tokens

    def num_tokens(self, num_slots: int) -> int:
        """Return how many tokens the shared pages and the own pages of `num_slots` slots can hold together; 0 if slots
        share no memory.
        """
        is_shared = self.num_pages and self.page_tokens < UNSHARED.page_tokens
        return (self.num_pages + num_slots) * self.page_tokens if is_shared else 0


# Slots that share nothing: the page of each is large enough for any sequence.
UNSHARED = KvMemory(sys.maxsize, 0)


@dataclass(frozen=True)
class StepPolicy:
    """The settings and limits by which a scheduler chooses steps. The engine process creates it from the operator's
    settings.
    """

    # Target duration in seconds of a step that decodes; the smallest chunk of a prompt may exceed it. 0 for no target:
    # then PROMPT_SHARE decides.
    itl_target: float = 0.0
    # The KV cache memory for all running sequences.
    memory: KvMemory = UNSHARED
    # Whether steps may read drafts.
    speculates: bool = False
    # The setting that limits the number of running sequences, for messages.
    limited_by: str = "GENAI_MAX_BATCH_SIZE"
    # Stores the answers of ended sequences as a source of drafts; None if there is no memory for this.
    answers: AnswerMemory | None = None
    # Returns the time in seconds.
    clock: Clock = time.monotonic


DEFAULT_POLICY = StepPolicy()
