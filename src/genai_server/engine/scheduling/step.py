"""A step: one forward pass, as the scheduler gives it to the runners."""

from collections.abc import Sequence as Several
from dataclasses import dataclass, field

from genai_server.engine.kv_memory import UNSHARED, KvMemory
from genai_server.engine.sequence import Sequence
from genai_server.generation import PooledText


@dataclass(frozen=True)
class Read:
    """What a step reads of one sequence: its next `num_tokens` unread tokens, of which the last may be drafted."""

    sequence: Sequence
    num_tokens: int
    # Tokens that may follow those of the sequence.
    draft: Several[int] = ()
    # The texts that these tokens are, where texts are pooled.
    texts: Several[PooledText] = ()
    # Whether the sequence was decoding when the step was made. Kept here, because the pass changes the sequence.
    decodes: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "decodes", self.sequence.is_decoding)


@dataclass(frozen=True)
class Step:
    """One forward pass: which sequences take part, and how many tokens it reads of each."""

    reads: list[Read]

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences that take part."""
        return [read.sequence for read in self.reads]

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences together."""
        return sum(read.num_tokens for read in self.reads)

    @property
    def decodes(self) -> bool:
        """Whether the step only decodes."""
        return all(read.decodes for read in self.reads)

    @property
    def num_decoding(self) -> int:
        """How many sequences the step decodes."""
        return sum(read.decodes for read in self.reads)

    @property
    def reads_more(self) -> bool:
        """Whether a runner which reads prompts by itself may read some in this step, too."""
        return any(sequence.by_library and not sequence.num_produced for sequence in self.sequences)

    @property
    def most_tokens(self) -> int:
        """The most tokens that the model may read in this step."""
        new = [s for s in self.sequences if s.by_library and not s.num_produced]
        return self.num_tokens + sum(len(sequence.request.prompt) for sequence in new)


@dataclass(frozen=True)
class StepPolicy:
    """What steps may contain."""

    # Whether one pass may decode and read a chunk of a prompt.
    mixes: bool = False
    # Target seconds of a step beside running streams; the smallest chunk may exceed it. 0 uses PROMPT_SHARE instead.
    itl_target: float = 0.0
    # Must hold the keys and values of all running sequences.
    memory: KvMemory = UNSHARED
    # Whether a step of a lone sequence may read a draft.
    speculates: bool = False


DEFAULT_POLICY = StepPolicy()
