"""What the scheduler gives to the runners: steps, which consist of a chunk of tokens of each sequence; with limits."""

import sys
import time
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import NamedTuple

from genai_server.engine.scheduling.drafts import AnswerMemory
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import PooledText
from genai_server.timing import Clock


@dataclass(frozen=True)
class ScheduledChunk:
    """Tokens of one sequence that a forward pass reads: a part of its prompt, or its newest token and a draft."""

    sequence: Sequence
    # The sequence's next unread tokens, and those of the draft behind them.
    tokens: Several[int]
    # Tokens that may follow those of the sequence.
    draft: Several[int] = ()
    # The texts that the tokens consist of, where texts are pooled.
    texts: Several[PooledText] = ()
    # Whether the sequence was decoding when the step was made. Stored, because the pass changes the sequence.
    decodes: bool = False
    # Whether the logits after each token are wanted, or only those after the last one.
    positions: bool = False

    @classmethod
    def next(
        cls, sequence: Sequence, num_tokens: int = 1, *, draft: Several[int] = (), texts: Several[PooledText] = ()
    ) -> "ScheduledChunk":
        """The sequence's next `num_tokens` unread tokens, with a draft behind them."""
        first = sequence.num_read
        tokens = [*sequence.tokens[first : first + num_tokens], *draft]
        return cls(sequence, tokens, draft, texts, sequence.is_decoding, sequence.wants_positions)

    @property
    def model_tokens(self) -> Several[int]:
        """The tokens with the ids that the model knows."""
        images = self.sequence.images
        return self.tokens if images is None else images.model_tokens(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that the pass reads, including the draft."""
        return len(self.tokens)

    def count(self) -> None:
        """Mark the tokens as read in their sequence, except those of the draft."""
        self.sequence.num_read += len(self.tokens) - len(self.draft)
        self.sequence.num_texts += len(self.texts)


def is_low_priority(chunks: Several[ScheduledChunk]) -> bool:
    """Whether all chunks belong to low-priority sequences."""
    return all(chunk.sequence.low_priority for chunk in chunks)


@dataclass(frozen=True)
class Step:
    """One forward pass: the chunk that it reads of each sequence that takes part."""

    chunks: list[ScheduledChunk]

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences that take part."""
        return [chunk.sequence for chunk in self.chunks]

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all chunks."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def decodes(self) -> bool:
        """Whether the step reads no part of a prompt."""
        return all(chunk.decodes for chunk in self.chunks)

    @property
    def is_chunk(self) -> bool:
        """Whether the step reads a part of one prompt, and nothing else."""
        return len(self.chunks) == 1 and not self.decodes

    @property
    def is_low_priority(self) -> bool:
        """Whether all of its sequences are of low priority, so that it gives way to any other step."""
        return is_low_priority(self.chunks)


class KvBudget(NamedTuple):
    """An amount of KV cache."""

    slots: int = 0
    # Pages that slots share.
    pages: int = 0


NOTHING_RESERVED = KvBudget()


@dataclass(eq=False)
class KvMemory:
    """Memory that KV cache slots share. Each slot has one page of its own; slots get the other pages on demand.

    Its users see changes of its size at once, because all of them have the same object.
    """

    # Tokens of a page. In each layer and head, their keys and values fill pages of the system's memory exactly.
    page_tokens: int
    # Pages that all slots share.
    num_pages: int
    # Pages of a state checkpoint (engine/kv_cache/kv_slots.py); 0 for a model without states of fixed size.
    checkpoint_pages: int = 0
    # Bytes of a page; 0 if the size is fixed.
    page_bytes: int = 0
    # Bytes that slots have of their own.
    own_bytes: int = 0
    # Pages that the longest sequence needs, and those of which a full batch of the longest ones makes use.
    min_pages: int = 0
    max_pages: int = 0

    @property
    def min_bytes(self) -> int:
        """The smallest size that `resize` can give it."""
        return self.own_bytes + self.min_pages * self.page_bytes

    @property
    def max_bytes(self) -> int:
        """The largest size that would be used."""
        return self.own_bytes + self.max_pages * self.page_bytes

    def resize(self, num_bytes: int) -> None:
        """Change the size to this number of bytes, or to the smallest one that holds the longest sequence."""
        if self.page_bytes:
            self.num_pages = max(self.min_pages, (num_bytes - self.own_bytes) // self.page_bytes)

    def pages(self, num_tokens: int) -> int:
        """Shared pages of a slot with this number of tokens and one more, besides the slot's own page."""
        return num_tokens // self.page_tokens

    def num_tokens(self, num_slots: int) -> int:
        """Capacity of all pages of this number of slots, in tokens; 0 if nothing is shared."""
        is_shared = self.num_pages and self.page_tokens < UNSHARED.page_tokens
        return (self.num_pages + num_slots) * self.page_tokens if is_shared else 0


# Slots that share nothing: the page of each is large enough for any sequence.
UNSHARED = KvMemory(sys.maxsize, 0)


@dataclass(frozen=True)
class StepPolicy:
    """What steps may contain."""

    # Target seconds of a step with running streams; the smallest chunk may exceed it. 0 uses PROMPT_SHARE instead.
    itl_target: float = 0.0
    # Must hold the keys and values of all running sequences.
    memory: KvMemory = UNSHARED
    # Whether steps may read drafts.
    speculates: bool = False
    # The setting that the number of running sequences comes from.
    limited_by: str = "GENAI_MAX_BATCH_SIZE"
    # Keeps the answers of ended sequences for drafts.
    answers: AnswerMemory | None = None
    # In seconds.
    clock: Clock = time.monotonic


DEFAULT_POLICY = StepPolicy()
