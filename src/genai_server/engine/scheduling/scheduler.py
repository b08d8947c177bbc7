"""Which sequences take part in the next forward pass: pure policy, without model or thread.

A round takes every decoding sequence one token further and reads one chunk of prompt. Where the runner can, both are
one pass; else the batched sequences have a pass together, each other one a pass of its own, and the chunk comes last.
So a long prompt costs a running stream one chunk's time for each token, however many prompts wait. How large a chunk
may be follows from what passes have taken up to now (engine/scheduling/step_time.py).

The prompt with the fewest tokens left is read first, so that a short one does not wait for a long one. Waiting counts
like tokens that have been read: no prompt waits for ever.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from genai_server.engine.scheduling.queue_wait import queue_wait
from genai_server.engine.scheduling.step_time import StepTimeModel
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import QueueFull
from genai_server.messages.figures import Capacity

# ONNX Runtime's attention on CPUs takes a chunk in blocks (measured: 64 tokens where the head size is 32, 128 where it
# is 64), and a block of one token is rounded otherwise. The sizes are multiples of this.
_QUERY_BLOCK = 16
# Matrix kernels take the tokens of a chunk in groups, and round those otherwise that are left at its end. The sizes of
# groups divide this.
_ROW_GROUPS = 8
# A prompt that waits gains on the others as if so much of the reading meanwhile had been its own.
_AGEING = 0.5
# Seconds of waiting which count as one step of priority.
_SECONDS_PER_PRIORITY = 30.0


@dataclass(frozen=True)
class Read:
    """What a step reads of one sequence: its next `num_tokens` unread tokens."""

    sequence: Sequence
    num_tokens: int
    # Whether this was only the last produced token when the step was made; the forward pass changes the sequence.
    decodes: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "decodes", self.sequence.is_decoding)


@dataclass(frozen=True)
class Step:
    """One forward pass: how many tokens it reads of which sequences."""

    reads: list[Read]

    @property
    def sequences(self) -> list[Sequence]:
        """Those that take part."""
        return [read.sequence for read in self.reads]

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences together."""
        return sum(read.num_tokens for read in self.reads)

    @property
    def decodes(self) -> bool:
        """Whether no prompt is read in it."""
        return all(read.decodes for read in self.reads)

    @property
    def num_decoding(self) -> int:
        """How many sequences it takes one token further."""
        return sum(read.decodes for read in self.reads)

    @property
    def reads_more(self) -> bool:
        """Whether prompts may be read in it besides, by a runner that does so by itself."""
        return any(sequence.by_library and not sequence.num_produced for sequence in self.sequences)

    @property
    def most_tokens(self) -> int:
        """How many tokens the model may read in it."""
        new = [s for s in self.sequences if s.by_library and not s.num_produced]
        return self.num_tokens + sum(len(sequence.request.prompt) for sequence in new)


@dataclass(frozen=True)
class StepPolicy:
    """What a step may be."""

    # Whether the runner decodes and reads a chunk in one pass.
    mixes: bool = False
    # Seconds that a step beside running streams may take, as far as the smallest chunk allows; 0 leaves it to the share
    # of their own time.
    itl_target: float = 0.0


DEFAULT_POLICY = StepPolicy()


class Scheduler:
    """Waiting sequences of one device, in order of priority and arrival, and running ones, in order of admission.

    Those that wait for their grammars are among the waiting ones, and count against the limits like them.

    While others decode, a chunk of prompt has at most `prefill_chunk` tokens, and fewer where they would wait for too
    long, else `idle_chunk`; no chunk has one token alone unless the prompt has, nor one beyond the attention's blocks,
    nor any but the last some beyond whole groups, for other kernels read these. What an exact sequence has produced
    itself is read anew token by token, as it was made.
    The prompts of those that wait have at most `max_waiting_tokens` tokens together, or any number if that is 0; who
    can run at once does not wait. `limited_by` is the setting that `max_running` comes from.
    """

    def __init__(
        self,
        *,
        max_running: int,
        max_waiting: int,
        max_waiting_tokens: int = 0,
        prefill_chunk: int,
        idle_chunk: int | None = None,
        limited_by: str = "GENAI_MAX_BATCH_SIZE",
        policy: StepPolicy = DEFAULT_POLICY,
    ) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._max_waiting_tokens = max_waiting_tokens or math.inf
        self._limited_by = limited_by
        self._prefill_chunk = prefill_chunk
        self._idle_chunk = max(prefill_chunk, idle_chunk or 0)
        self._policy = policy
        # Called before the first chunk of a prompt is chosen, when others may have read its beginning.
        self.before_first_chunk: Callable[[Sequence], None] = lambda sequence: None
        self._step_times = StepTimeModel()
        self._round: Iterator[Step] = iter(())

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do: nothing runs, and nothing is ready to."""
        return not self.running and all(s.state is SequenceState.WAITING_FOR_GRAMMAR for s in self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises QueueFull at the limit of requests, or of the prompts' tokens."""
        self._require_capacity(len(sequence.request.prompt))
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda waiting: waiting.request.priority)

    def _require_capacity(self, num_tokens: int) -> None:
        present = len(self.running) + len(self.waiting)
        if self.room() == 0:
            raise QueueFull(
                f"{present} requests are on this device already: {self._limited_by} lets {self._max_running} run "
                f"and GENAI_MAX_QUEUE lets {self._max_waiting} wait",
                retry_after=self.queue_wait(),
            )
        excess = num_tokens - self._room_tokens()
        if present >= self._max_running and excess > 0:
            raise QueueFull(
                f"the prompts of the requests that wait for this device would have {self._max_waiting_tokens + excess} "
                f"tokens with this one's {num_tokens}: GENAI_MAX_QUEUE_TOKENS lets {self._max_waiting_tokens} wait",
                retry_after=self.queue_wait(int(excess)),
            )

    @property
    def capacity(self) -> Capacity:
        """What could be added if nothing were there."""
        tokens = None if self._max_waiting_tokens == math.inf else int(self._max_waiting_tokens)
        return Capacity(self._max_running, self._max_waiting, tokens, self._limited_by)

    def room(self) -> int:
        """How many more sequences could be added."""
        return max(0, self._max_running + self._max_waiting - len(self.running) - len(self.waiting))

    def room_tokens(self) -> int | None:
        """How many tokens the prompt of one more may have; None if any number, or if it would not wait."""
        if self._max_waiting_tokens == math.inf or len(self.running) + len(self.waiting) < self._max_running:
            return None
        return max(0, int(self._room_tokens()))

    def queue_wait(self, num_tokens: int = 0) -> int:
        """Seconds until about one more sequence, and so many tokens of prompts, can be added to a full queue."""
        return queue_wait(self.running, self.waiting, self._step_times, num_tokens)

    def _room_tokens(self) -> float:
        """Tokens that may still wait; those that only wait for the next step to begin do not count."""
        late = self.waiting[self._max_running - len(self.running) :]
        return self._max_waiting_tokens - sum(len(sequence.request.prompt) for sequence in late)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is."""
        sequences = self.running if sequence.state is SequenceState.RUNNING else self.waiting
        sequences.remove(sequence)

    def admit(self) -> list[Sequence]:
        """Move waiting sequences to the running ones while there is room; returns those moved.

        A sequence without its grammar is passed over, and keeps its place. One whose very prompt is being read for
        another waits until that has been: then it need not be read again.
        """
        admitted: list[Sequence] = []
        for sequence in sorted(self.waiting, key=_priority):
            if len(self.running) == self._max_running:
                break
            is_ready = sequence.state is SequenceState.WAITING
            if is_ready and not any(other.gives_prompt(sequence) for other in self.running):
                sequence.state = SequenceState.RUNNING
                admitted.append(sequence)
                self.running.append(sequence)
        self.waiting = [sequence for sequence in self.waiting if sequence.state is not SequenceState.RUNNING]
        return admitted

    def next_step(self) -> Step | None:
        """The next pass of this round or the first of a new one; None when nothing runs."""
        found = next(self._round, None)
        if found is None:
            self._round = self._passes()
            found = next(self._round, None)
        return found

    def answered(self, sequence: Sequence) -> None:
        """Learn how long an answer has become that nobody has cut."""
        self._step_times.answered(sequence.num_produced)

    def observe(self, step: Step, seconds: float) -> None:
        """Learn how long a pass took."""
        num_rows = step.num_decoding
        if step.decodes:
            self._step_times.decoded(num_rows, seconds)
        elif num_rows:
            self._step_times.mixed(num_rows, step.num_tokens - num_rows, seconds)
        else:
            self._step_times.prefilled(step.num_tokens, seconds)

    def _passes(self) -> Iterator[Step]:
        """One round. What changes between two passes is seen by the next: each is put together when it is asked for."""
        self._step_times.begin_round()
        batch = [sequence for sequence in self.running if sequence.batched and sequence.is_decoding]
        if batch:
            reading = self._next_prompt()
            chunk = [self._next_chunk(reading, batch)] if reading is not None and self._may_mix(reading, batch) else []
            yield Step([*(Read(sequence, 1) for sequence in batch), *chunk])
        for sequence in [sequence for sequence in self.running if not sequence.batched]:
            if sequence in self.running and not sequence.batched and sequence.is_decoding:
                yield Step([Read(sequence, 1)])
        reading = self._next_prompt()
        if reading is not None and not self._may_mix(reading, [s for s in batch if s in self.running]):
            yield Step([self._next_chunk(reading)])

    def _may_mix(self, reading: Sequence, batch: list[Sequence]) -> bool:
        """Whether a prompt's chunk may be read in the pass of a batch, which is not bitwise equal to two passes."""
        able = (s.batched and not s.request.exact and not s.wants_positions for s in (reading, *batch))
        return self._policy.mixes and bool(batch) and all(able)

    def _next_prompt(self) -> Sequence | None:
        """The prompt to read from now."""
        prompts = [sequence for sequence in self.running if not sequence.is_decoding]
        return min(prompts, key=self._urgency, default=None)

    def _urgency(self, sequence: Sequence) -> tuple[float, float, int]:
        """The prompt of which it is least is read first."""
        gained = _AGEING * self._step_times.tokens_read_in(sequence.age)
        return _priority(sequence), sequence.num_unread - gained, sequence.id

    def _next_chunk(self, sequence: Sequence, batch: Collection[Sequence] = ()) -> Read:
        """What to read of a prompt, in a pass with a batch or alone."""
        if not sequence.num_produced and sequence.num_read == sequence.num_cached:
            self.before_first_chunk(sequence)
        return Read(sequence, self._chunk(sequence, batch))

    def _chunk(self, sequence: Sequence, batch: Collection[Sequence]) -> int:
        """How many tokens of a prompt to read at once."""
        num_decoding = sum(other.is_decoding for other in self.running)
        most = self._prefill_chunk if not sequence.batched else self._idle_chunk
        if num_decoding:
            most = self._step_times.chunk(
                self._prefill_chunk,
                decoding=self._step_times.seconds_to_step(len(batch)) if batch else None,
                crowd=(len(self.running) - num_decoding) / num_decoding,
                target=self._policy.itl_target,
            )
        # What was produced last is left to a pass of its own: from there on the sequence goes on as before.
        left = sequence.num_unread - (1 if sequence.num_produced else 0)
        if sequence.request.exact and sequence.num_produced:
            left = len(sequence.request.prompt) - sequence.num_read
            if left <= 0:
                return 1
        group = min(_ROW_GROUPS, 1 << (most.bit_length() - 1))

        def is_read_alike(chunk: int) -> bool:
            return (chunk == left or chunk % group == 0) and chunk % _QUERY_BLOCK != 1 and left - chunk != 1

        return next(filter(is_read_alike, range(min(most, left), 1, -1)), left)


def _priority(sequence: Sequence) -> float:
    """The lower, the sooner it has its turn: its own, and one less for so many seconds of waiting."""
    return sequence.request.priority - sequence.age // _SECONDS_PER_PRIORITY
