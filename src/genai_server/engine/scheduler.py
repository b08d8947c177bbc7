"""Which sequences take part in the next forward pass: pure policy, without model, thread or clock.

A round takes every decoding sequence one token further – the batched ones in one pass together, each other one in a
pass of its own – and then reads one chunk of prompt, by priority and then of the sequence that has waited longest for
its first token. So a long prompt costs a running stream one chunk's time for each token, however many prompts wait; how
large a chunk may be follows from what passes have taken up to now (engine/pace.py).
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from genai_server.engine.forecast import seconds_until_room
from genai_server.engine.pace import Pace
from genai_server.engine.sequence import Sequence
from genai_server.errors import QueueFull
from genai_server.messages.figures import Capacity

# ONNX Runtime's attention on CPUs takes a chunk in blocks (measured: 64 tokens where the head size is 32, 128 where it
# is 64), and a block of one token is rounded otherwise. The sizes are multiples of this.
_QUERY_BLOCK = 16
# Matrix kernels take the tokens of a chunk in groups, and round those otherwise that are left at its end. The sizes of
# groups divide this.
_ROW_GROUPS = 8


@dataclass(frozen=True)
class Pass:
    """One forward pass: it reads the next `num_tokens` tokens of each of the sequences; `prefills` if of a prompt."""

    sequences: list[Sequence]
    num_tokens: int
    prefills: bool = False

    @property
    def reads_more(self) -> bool:
        """Whether prompts may be read in it besides, by a runner that does so by itself."""
        return any(sequence.by_library and not sequence.num_produced for sequence in self.sequences)

    @property
    def most_tokens(self) -> int:
        """How many tokens the model may read in it."""
        new = [s for s in self.sequences if s.by_library and not s.num_produced]
        return self.num_tokens * len(self.sequences) + sum(len(sequence.request.prompt) for sequence in new)


class Scheduler:
    """Waiting sequences of one device, in order of priority and arrival, and running ones, in order of admission.

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
    ) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._max_waiting_tokens = max_waiting_tokens or math.inf
        self._limited_by = limited_by
        self._prefill_chunk = prefill_chunk
        self._idle_chunk = max(prefill_chunk, idle_chunk or 0)
        self._pace = Pace()
        self._round: Iterator[Pass] = iter(())

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.running and not self.waiting

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises QueueFull when as many wait as may wait."""
        self.require_room(len(sequence.request.prompt))
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda waiting: waiting.request.priority)

    def require_room(self, num_tokens: int, coming: Collection[Sequence] = ()) -> None:
        """Raise QueueFull if a sequence with such a prompt could not be added beside those that are about to be."""
        present = self._num_present(coming)
        if self.room(coming) == 0:
            raise QueueFull(
                f"{present} requests are on this device already: {self._limited_by} lets {self._max_running} run "
                f"and GENAI_MAX_QUEUE lets {self._max_waiting} wait",
                retry_after=self.seconds_until_room(),
            )
        excess = num_tokens - self._room_tokens(coming)
        if present >= self._max_running and excess > 0:
            raise QueueFull(
                f"the prompts of the requests that wait for this device would have {self._max_waiting_tokens + excess} "
                f"tokens with this one's {num_tokens}: GENAI_MAX_QUEUE_TOKENS lets {self._max_waiting_tokens} wait",
                retry_after=self.seconds_until_room(int(excess)),
            )

    @property
    def capacity(self) -> Capacity:
        """What could be added if nothing were there."""
        tokens = None if self._max_waiting_tokens == math.inf else int(self._max_waiting_tokens)
        return Capacity(self._max_running, self._max_waiting, tokens)

    def room(self, coming: Collection[Sequence] = ()) -> int:
        """How many more sequences could be added beside those that are about to be."""
        return max(0, self._max_running + self._max_waiting - self._num_present(coming))

    def room_tokens(self, coming: Collection[Sequence] = ()) -> int | None:
        """How many tokens the prompt of one more may have; None if any number, or if it would not wait."""
        if self._max_waiting_tokens == math.inf or self._num_present(coming) < self._max_running:
            return None
        return max(0, int(self._room_tokens(coming)))

    def seconds_until_room(self, num_tokens: int = 0) -> int:
        """Seconds until about one more sequence, and so many tokens of prompts, can be added to a full queue."""
        return seconds_until_room(self.running, self.waiting, self._pace, num_tokens)

    def _num_present(self, coming: Collection[Sequence]) -> int:
        return len(self.running) + len(self.waiting) + len(coming)

    def _room_tokens(self, coming: Collection[Sequence]) -> float:
        """Tokens that may still wait; those that only wait for the next step to begin do not count."""
        late = [*self.waiting, *coming][self._max_running - len(self.running) :]
        return self._max_waiting_tokens - sum(len(sequence.request.prompt) for sequence in late)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def admit(self) -> list[Sequence]:
        """Move waiting sequences to the running ones while there is room; returns those moved."""
        room = self._max_running - len(self.running)
        admitted, self.waiting = self.waiting[:room], self.waiting[room:]
        self.running += admitted
        return admitted

    def next_pass(self) -> Pass | None:
        """The next pass of this round or the first of a new one; None when nothing runs."""
        found = next(self._round, None)
        if found is None:
            self._round = self._passes()
            found = next(self._round, None)
        return found

    def answered(self, sequence: Sequence) -> None:
        """Learn how long an answer has become that nobody has cut."""
        self._pace.answered(sequence.num_produced)

    def observe(self, step: Pass, seconds: float) -> None:
        """Learn how long a pass took."""
        if step.prefills:
            self._pace.prefilled(step.num_tokens, seconds)
        else:
            self._pace.decoded(seconds)

    def _passes(self) -> Iterator[Pass]:
        """One round. What changes between two passes is seen by the next: each is put together when it is asked for."""
        self._pace.begin_round()
        batch = [sequence for sequence in self.running if sequence.batched and not sequence.is_prefilling]
        if batch:
            yield Pass(batch, 1)
        for sequence in [sequence for sequence in self.running if not sequence.batched]:
            if sequence in self.running and not sequence.batched and not sequence.is_prefilling:
                yield Pass([sequence], 1)
        prompts = [sequence for sequence in self.running if sequence.is_prefilling]
        if prompts:
            reading = min(prompts, key=lambda sequence: sequence.request.priority)
            yield Pass([reading], self._chunk(reading), prefills=True)

    def _chunk(self, sequence: Sequence) -> int:
        """How many tokens of a prompt to read at once."""
        others_decode = any(not other.is_prefilling for other in self.running)
        most = self._prefill_chunk if not sequence.batched else self._idle_chunk
        if others_decode:
            most = self._pace.chunk(self._prefill_chunk)
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
