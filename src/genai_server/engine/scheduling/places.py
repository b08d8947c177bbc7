"""Which sequences wait and which run on a device, with the limits of both.

A sequence runs if the batch's memory is expected to hold all running sequences: each with its tokens, and with as many
more as answers have had lately. When they need more than there is, the last ones are paused; the first one never is.
The first waiting sequence for which there is no memory blocks all others, so that long requests run, too.

Sequences of the background only take what the others leave. They wait behind all others, their queue has limits of its
own, and they give up their places: a paused one waits again, and continues later.
"""

import math
from collections.abc import Callable, Collection

from genai_server.engine.abilities import PassRules
from genai_server.engine.scheduling.queue_wait import queue_wait
from genai_server.engine.scheduling.scheduler_output import NOTHING_KEPT, KvRoom, StepPolicy
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, StepTimeModel
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.messages.protocol import Capacity

# Seconds of waiting which count as one step of priority.
_SECONDS_PER_PRIORITY = 30.0
# Tokens that an answer is expected to have before any answer has ended.
_ANSWER = 512
# Sequences get memory for this many times the length of recent answers, because a paused one may have to be read again;
# and at least for this number of further tokens, because a sequence that has continued should not be paused at once.
_MARGIN, _MIN_LEFT = 2, 256


class Places:
    """The waiting and running sequences of one device.

    The limits count for sequences of the background and for all others separately.
    """

    def __init__(
        self, runner: PassRules, policy: StepPolicy, *, max_running: int, max_waiting: int, max_waiting_tokens: int
    ) -> None:
        # By priority and arrival, those of the background last; with those that wait for their grammars.
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []  # in order of admission
        # Called with a sequence that gives up its place, before another one gets it.
        self.on_pause: Callable[[Sequence], None] = lambda sequence: None
        self._runner = runner
        self._policy = policy
        self._max_running = max_running
        self._max_waiting = max_waiting
        # Limit of the waiting prompts' tokens together; sequences that can run at once do not count.
        self._max_waiting_tokens = max_waiting_tokens or math.inf
        self._memory = policy.memory
        self._step_times = StepTimeModel.tried(runner.abilities)

    @property
    def is_idle(self) -> bool:
        """Whether no sequence runs or is ready to run."""
        return not self.running and all(s.state is SequenceState.PREPARING for s in self.waiting)

    @property
    def has_foreground(self) -> bool:
        """Whether any sequence is present that is not of the background."""
        is_waiting = bool(self.waiting) and not self.waiting[0].background
        return is_waiting or not all(sequence.background for sequence in self.running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, which the memory holds alone. Raises QueueFull at the limit of requests or of tokens."""
        background = sequence.background
        if self.num_free(background=background) == 0:
            present, wait = self.num_present(background=background), self.queue_wait(background=background)
            raise self.capacity.full_of_requests("this device", present, wait)
        num_tokens = _num_prompt_tokens(self._late(sequence, background=background))
        excess = num_tokens - self._max_waiting_tokens
        if excess > 0:
            own, wait = len(sequence.request.prompt), self.queue_wait(int(excess), background=background)
            raise self.capacity.full_of_tokens("this device", num_tokens, own, wait)
        self._queue(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting or running sequence."""
        sequences = self.running if sequence.state is SequenceState.RUNNING else self.waiting
        sequences.remove(sequence)

    @property
    def capacity(self) -> Capacity:
        """The limits of an empty device."""
        tokens = None if self._max_waiting_tokens == math.inf else int(self._max_waiting_tokens)
        return Capacity(self._max_running, self._max_waiting, tokens, self._policy.limited_by)

    def num_present(self, *, background: bool = False) -> int:
        """How many sequences run and wait: those of the background, or all others."""
        return sum(sequence.background is background for sequence in (*self.running, *self.waiting))

    def num_free(self, *, background: bool = False) -> int:
        """How many more sequences, of the background or others, could be added."""
        return max(0, self._max_running + self._max_waiting - self.num_present(background=background))

    def free_tokens(self) -> int | None:
        """How many tokens the prompt of one more sequence may have that is not of the background; None without a limit,
        or if it might not wait.
        """
        late = self._late()
        if self._max_waiting_tokens == math.inf or (not late and self.num_present() < self._max_running):
            return None
        return max(0, int(self._max_waiting_tokens - _num_prompt_tokens(late)))

    def queue_wait(self, num_tokens: int = 0, *, background: bool = False) -> int:
        """Estimated seconds until a full queue takes one more sequence with `num_tokens` of prompt."""
        running, waiting = _ahead(self.running, background), _ahead(self.waiting, background)
        return queue_wait(
            running, waiting, self._step_times, num_tokens, pages=self._pages, num_pages=self._memory.num_pages
        )

    def make_room(self) -> None:
        """Pause sequences until the memory holds the next tokens of all others. A sequence alone always has the memory.

        The first ones to be paused have the lowest priority, and of these those that came last.
        """
        while sum(map(self._least_pages, self.running)) > self._memory.num_pages:
            pausable = [sequence for sequence in self.running if self._grows(sequence)]
            if not pausable or len(self.running) == 1:
                return
            self._pause(max(pausable, key=lambda sequence: (rank(sequence), sequence.id)))

    def admit(self) -> list[Sequence]:
        """Move waiting sequences to the running ones while places are free; returns those moved.

        A sequence that waits for its grammar is passed over, and keeps its place. A sequence with the same prompt as
        one being read waits for that, and then reuses its keys and values. One for which there is no memory is not
        passed over. Sequences of the background are paused for others.
        """
        admitted: list[Sequence] = []
        # A runner that chooses tokens itself reads all open sequences, those of the background included.
        if self.has_foreground and self._runner.abilities.chooses:
            for sequence in self._pausable():
                self._pause(sequence)
        for sequence in sorted(self.waiting, key=rank):
            is_ready = sequence.state is SequenceState.WAITING and not sequence.is_choosing
            if is_ready and not any(other.gives_prompt(sequence) for other in self.running):
                if not self._make_place(sequence):
                    break
                sequence.state = SequenceState.RUNNING
                admitted.append(sequence)
                self.waiting.remove(sequence)
                self.running.append(sequence)
        return admitted

    def _make_place(self, sequence: Sequence) -> bool:
        """Whether a sequence can run now. As many of the background as that takes are paused, the newest first."""
        if sequence.background:
            if self.has_foreground and self._runner.abilities.chooses:
                return False
            # One may run in any case.
            return self._fits(sequence, self.running, self._kept(sequence) if self.running else NOTHING_KEPT)
        pausable = self._pausable()
        if not self._fits(sequence, [other for other in self.running if other not in pausable]):
            return False
        kept = self._kept(sequence) if pausable else NOTHING_KEPT
        while pausable and not self._fits(sequence, self.running, kept):
            self._pause(pausable.pop())
        return True

    def _fits(self, sequence: Sequence, running: Collection[Sequence], kept: KvRoom = NOTHING_KEPT) -> bool:
        """Whether a sequence has a place and memory next to some running ones, and a part of the cache that is kept."""
        has_place = len(running) + kept.slots < self._max_running
        return has_place and self._pages(sequence) + kept.pages <= self._free_pages(running)

    def _kept(self, sequence: Sequence) -> KvRoom:
        """What sequences of the background leave to the prompts of others, before a sequence has a place.

        Those that run and the prefixes of those that have ended have half of the slots, so that the background does not
        lose all of its places to prefixes.
        """
        num_others = sum(not other.background for other in (*self.running, sequence))
        return self._runner.kept(max(0, self._max_running // 2 - num_others))

    def _pausable(self) -> list[Sequence]:
        return [sequence for sequence in self.running if sequence.background and self._runner.may_pause(sequence)]

    def _pause(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.on_pause(sequence)
        sequence.pause()
        self._queue(sequence)

    def _queue(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda waiting: (waiting.background, waiting.request.priority, waiting.id))

    def _late(self, *more: Sequence, background: bool = False) -> list[Sequence]:
        """Those of the waiting sequences, of the background or others, and of some more, which the next step does not
        admit: an upper estimate, in order of arrival.
        """
        running, waiting = _ahead(self.running, background), [*_ahead(self.waiting, background), *more]
        places, pages = self._max_running - len(running), self._free_pages(running)
        for number, sequence in enumerate(waiting):
            places -= 1
            pages -= self._pages(sequence)
            if places < 0 or pages < 0:
                return [late for late in waiting[number:] if late.background is background]
        return []

    def _pages(self, sequence: Sequence) -> int:
        """Pages of memory that a sequence is expected to need."""
        if not self._grows(sequence):
            return self._memory.pages(sequence.max_length)
        left = self._step_times.tokens_left(0)
        left = _ANSWER if left == math.inf else _MARGIN * left
        more = max(_MIN_LEFT, int(left) - sequence.num_produced)
        return self._memory.pages(min(sequence.max_length, len(sequence.tokens) + more))

    def _least_pages(self, sequence: Sequence) -> int:
        """Pages of memory that a sequence needs for its next tokens."""
        more = MAX_DRAFTED if self._grows(sequence) else sequence.num_left
        return self._memory.pages(min(sequence.max_length, len(sequence.tokens) + more))

    def _grows(self, sequence: Sequence) -> bool:
        """Whether a sequence takes memory as its tokens come, and can be paused. A Generator has all memory at once."""
        can = self._runner.abilities
        alone = sequence.adapter is not None and not can.adapters
        return can.mixes and not alone and self._runner.may_pause(sequence)

    def _free_pages(self, running: Collection[Sequence]) -> int:
        """Pages that none of the running sequences is expected to need."""
        return self._memory.num_pages - sum(map(self._pages, running))


def rank(sequence: Sequence) -> tuple[bool, float]:
    """The sort key of sequences; the least comes first.

    Those of the background come last. Others go by priority, less one for each _SECONDS_PER_PRIORITY since the arrival.
    """
    return sequence.background, sequence.request.priority - sequence.age // _SECONDS_PER_PRIORITY


def _ahead(sequences: list[Sequence], background: bool) -> list[Sequence]:
    """The sequences that one of the background, or another one, may have to wait for."""
    return sequences if background else [sequence for sequence in sequences if not sequence.background]


def _num_prompt_tokens(sequences: list[Sequence]) -> int:
    return sum(len(sequence.request.prompt) for sequence in sequences)
