"""Which sequences wait and which run on a device, with the limits of both, and how long a full queue stays full.

A sequence runs if the batch's memory is expected to hold all running sequences: each with its tokens, and with as many
more as answers have had lately. When they need more than there is, the last ones are paused; the first one never is.
The first waiting sequence for which there is no memory blocks all others, so that long requests run, too.

Each tenant has an equal share of the places, of the memory and of the queue, and others may use what it leaves of that.
A free place goes to the tenant that has the fewest and, of equals, to the one whose turn it is
(fair_queue.py). A sequence within its tenant's share does not wait for other tenants: sequences of
those that have more than their shares are paused for it. Not for each of a tenant's requests, though: for a while after
the last one a device with many places leaves one free. A single sequence may need more memory than the share of its
tenant. It waits until others leave that, and after a while blocks them.

Sequences of the background only take what the others leave. They wait behind all others, their queue has limits of its
own, and they give up their places: a paused one waits again, and continues later.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush

from genai_server.engine.abilities import PassRules
from genai_server.engine.scheduling.scheduler_output import NOTHING_KEPT, KvRoom, StepPolicy
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, StepTimeModel
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.fair_queue import FairQueue
from genai_server.messages.protocol import Capacity

# Seconds. Longer estimates would mean little.
_FURTHEST = 600


def queue_wait(
    running: Collection[Sequence],
    waiting: Iterable[Sequence],
    step_times: StepTimeModel,
    num_tokens: int = 0,
    *,
    pages: Callable[[Sequence], int] = lambda sequence: 0,
    num_pages: int = 0,
) -> int:
    """Seconds, at least one, until a running answer has ended and `num_tokens` of waiting prompts have left the queue.

    The estimate assumes that prompts are read one after another, and that answers are produced side by side. Each
    answer is assumed to be as long as recent ones. The first waiting sequence begins when an answer ends and the
    `num_pages` of memory hold it, of which each sequence is expected to need `pages`.
    """
    read = 0.0
    ends = []
    free = num_pages - sum(map(pages, running))
    for sequence in running:
        if not sequence.is_decoding:
            read += step_times.seconds_to_read(sequence.num_unread)
        begins = 0.0 if sequence.is_decoding else read
        ends.append((begins + _seconds_to_answer(sequence, step_times), pages(sequence)))
    heapify(ends)
    places, now, waits = 0, 0.0, deque(waiting)
    while ends:
        now, freed = heappop(ends)
        if not waits:
            break
        places, free = places + 1, free + freed
        while waits and places and pages(waits[0]) <= free:
            begun = waits.popleft()
            num_prompt, needed = len(begun.request.prompt), pages(begun)
            num_tokens -= num_prompt
            places, free = places - 1, free - needed
            seconds = step_times.seconds_to_read(num_prompt) + _seconds_to_answer(begun, step_times)
            heappush(ends, (now + seconds, needed))
        if num_tokens <= 0:
            break
    return max(1, min(_FURTHEST, math.ceil(now)))


def _seconds_to_answer(sequence: Sequence, step_times: StepTimeModel) -> float:
    return step_times.seconds_to_decode(min(sequence.num_left, step_times.tokens_left(sequence.num_produced)))


# Seconds of waiting which count as one step of priority, and after which a sequence that needs more memory than its
# tenant's share blocks others.
_SECONDS_PER_PRIORITY = 30.0
# Seconds for which a place stays free for a tenant whose last sequence has ended, on a device with this many places.
_AWAITED_SECONDS, _MANY_PLACES = 30.0, 8
# Tokens that an answer is expected to have before any answer has ended.
_ANSWER = 512
# Sequences get memory for this many times the length of recent answers, because a paused one may have to be read again;
# and at least for this number of further tokens, because a sequence that has continued should not be paused at once.
_MARGIN, _MIN_LEFT = 2, 256


class Places:
    """The waiting and running sequences of one device.

    The limits, and the shares of tenants, count for sequences of the background and for all others separately. A tenant
    saves up `max_credit` tokens at most.
    """

    def __init__(
        self,
        runner: PassRules,
        policy: StepPolicy,
        *,
        max_running: int,
        max_waiting: int,
        max_waiting_tokens: int,
        max_credit: int,
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
        self._step_times = StepTimeModel(runner.abilities.tried_passes, runner.abilities.tried_prompt_token)
        # The turns of the background's tenants, and those of all others.
        self._turns = {background: FairQueue(max_credit) for background in (True, False)}
        # When a sequence of each tenant ended last, those of the background aside.
        self._left: dict[str, float] = {}

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
        """Queue a sequence, which the memory holds alone.

        Raises QueueFull at the limit of requests or of tokens if the sequence's tenant has an equal share of these.
        """
        background, tenant = sequence.background, sequence.tenant
        present = self.present(background=background)
        if not self.capacity.num_free(present, tenant):
            wait = self.queue_wait(background=background)
            raise self.capacity.full_of_requests("this device", present, tenant, wait)
        self._check_tokens(sequence, present)
        waiting = {other.tenant for other in self._of(background) if not other.is_decoding}
        if tenant not in waiting:
            self._turns[background].arrive(tenant, waiting)
        self._queue(sequence)

    def _check_tokens(self, sequence: Sequence, present: Mapping[str, int]) -> None:
        """Raise QueueFull if the waiting prompts would have too many tokens together with that of a sequence."""
        background, own = sequence.background, len(sequence.request.prompt)
        num_tokens = sum(self.waiting_tokens(sequence, background=background).values())
        excess = num_tokens - self._max_waiting_tokens
        if excess <= 0:
            return
        if present.keys() - {sequence.tenant}:
            waiting_tokens = self.waiting_tokens(background=background)
            free = self.capacity.free_tokens(present, waiting_tokens, sequence.tenant)
            if free is None or own <= free:
                return
        wait = self.queue_wait(int(excess), background=background)
        raise self.capacity.full_of_tokens("this device", num_tokens, own, wait)

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting or running sequence."""
        sequences = self.running if sequence.state is SequenceState.RUNNING else self.waiting
        sequences.remove(sequence)
        if not sequence.background:
            self._left[sequence.tenant] = self._policy.clock()

    @property
    def capacity(self) -> Capacity:
        """The limits of an empty device."""
        tokens = None if self._max_waiting_tokens == math.inf else int(self._max_waiting_tokens)
        return Capacity(self._max_running, self._max_waiting, tokens, self._policy.limited_by)

    def present(self, *, background: bool = False) -> dict[str, int]:
        """How many sequences of each tenant run and wait: those of the background, or all others."""
        return Counter(sequence.tenant for sequence in self._of(background))

    def waiting_tokens(self, *more: Sequence, background: bool = False) -> dict[str, int]:
        """Tokens of the waiting prompts, and of some more, that the next step does not admit, by tenant: an upper
        estimate.
        """
        found: Counter[str] = Counter()
        for sequence in self._late(*more, background=background):
            found[sequence.tenant] += len(sequence.request.prompt)
        return found

    def count_tokens(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens that a sequence has been served, for the turns of its tenant."""
        self._turns[sequence.background].serve(sequence.tenant, num_tokens)

    def queue_wait(self, num_tokens: int = 0, *, background: bool = False) -> int:
        """Estimated seconds until a full queue takes one more sequence with `num_tokens` of prompt."""
        running, waiting = _ahead(self.running, background), _ahead(self.waiting, background)
        return queue_wait(
            running, waiting, self._step_times, num_tokens, pages=self._pages, num_pages=self._memory.num_pages
        )

    def make_room(self) -> None:
        """Pause sequences until the memory holds the next tokens of all others. A sequence alone always has the memory.

        The first ones to be paused are of the tenant that has most of the memory, unless it has only one sequence. Of
        these, they have the lowest priority, and came last.
        """
        while sum(map(self._least_pages, self.running)) > self._memory.num_pages:
            pausable = [sequence for sequence in self.running if self._grows(sequence)]
            if not pausable or len(self.running) == 1:
                return
            self._pause(max(pausable, key=self._pause_order(self.running)))

    def admit(self) -> list[Sequence]:
        """Move waiting sequences to the running ones while places are free; returns those moved.

        A sequence that waits for its grammar is passed over, and keeps its place. A sequence with the same prompt as
        one being read waits for that, and then reuses its keys and values. One for which there is no memory is not
        passed over, except by those of other tenants that are within their shares. Sequences of the background are
        paused for others.
        """
        admitted: list[Sequence] = []
        queues = self._queues()
        num_tenants = {background: len(self.present(background=background)) for background in (True, False)}
        blocked: Sequence | None = None
        while queues:
            queue = min(queues, key=lambda queue: self._place_order(queue[0]))
            sequence = queue.popleft()
            num = num_tenants[sequence.background]
            if not any(other.gives_prompt(sequence) for other in self.running):
                may_run = blocked is None or self._may_pass(sequence, blocked, num)
                if may_run and self._make_place(sequence, num):
                    sequence.state = SequenceState.RUNNING
                    admitted.append(sequence)
                    self.waiting.remove(sequence)
                    self.running.append(sequence)
                else:
                    blocked = blocked or sequence
                    queue.clear()
            if not queue:
                queues.remove(queue)
        return admitted

    def _queues(self) -> list[deque[Sequence]]:
        """The sequences of each tenant that are ready to run, in their order."""
        found: dict[tuple[bool, str], deque[Sequence]] = {}
        for sequence in sorted(self.waiting, key=lambda sequence: (priority_class(sequence), own_priority(sequence))):
            if sequence.state is SequenceState.WAITING and not sequence.is_choosing:
                found.setdefault((sequence.background, sequence.tenant), deque()).append(sequence)
        return list(found.values())

    def _place_order(self, sequence: Sequence) -> tuple[object, ...]:
        """The sort key of the first waiting sequences of tenants; the least gets the next place."""
        num_places = len(self._running_of(sequence, self.running))
        turn = self._turns[sequence.background].turn(sequence.tenant)
        return priority_class(sequence), num_places, turn, sequence.id

    def _may_pass(self, sequence: Sequence, blocked: Sequence, num_tenants: int) -> bool:
        """Whether a sequence may run before one that waits for memory or a place."""
        if sequence.background is not blocked.background:
            return False
        has_waited = blocked.age >= _SECONDS_PER_PRIORITY and not self._running_of(blocked, self.running)
        return not has_waited and self._is_within_share(sequence, self.running, num_tenants)

    def _make_place(self, sequence: Sequence, num_tenants: int) -> bool:
        """Whether a sequence can run now, next to sequences of `num_tenants` tenants.

        As many as that takes are paused: those of the background for others, the newest first, and then, for one within
        its tenant's share, those of tenants that have more than their shares.
        """
        pausable = [] if sequence.background else self._pausable()
        # One of the background may run in any case.
        kept = self._kept(sequence) if sequence.background and self.running else NOTHING_KEPT
        staying = [other for other in self.running if other not in pausable]
        if not sequence.background and self._awaits_others(sequence, staying):
            kept = KvRoom(1)
        while not self._fits(sequence, staying, kept):
            above = self._above_share(sequence, staying, num_tenants)
            if not above:
                return False
            staying.remove(max(above, key=self._pause_order(staying)))
        for other in [other for other in self.running if other not in staying and other not in pausable]:
            self._pause(other)
        if pausable:
            kept = self._kept(sequence)
        while pausable and not self._fits(sequence, self.running, kept):
            self._pause(pausable.pop())
        return True

    def _awaits_others(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Whether a sequence may start only if another place stays free, for a tenant that probably returns soon.

        Such a tenant has no sequences now, but one of its sequences ended less than _AWAITED_SECONDS ago. No place
        needs to stay free if the sequence's own tenant stays within its share even when all tenants of this kind are
        counted as present. Devices with less than _MANY_PLACES places never keep one free.
        """
        if self._max_running < _MANY_PLACES or self._left.keys() <= {sequence.tenant}:
            return False
        since = self._policy.clock() - _AWAITED_SECONDS
        self._left = {tenant: at for tenant, at in self._left.items() if at > since}
        present = self.present()
        absent = self._left.keys() - present.keys()
        return bool(absent) and not self._is_within_share(sequence, running, len(present) + len(absent))

    def _is_within_share(self, sequence: Sequence, running: Collection[Sequence], num_tenants: int) -> bool:
        """Whether a waiting sequence would take no more than its tenant's share of the places and the memory."""
        places, pages = self._share(sequence.background, num_tenants)
        own = [*self._running_of(sequence, running), sequence]
        return len(own) <= places and sum(map(self._pages, own)) <= pages

    def _above_share(self, sequence: Sequence, running: Collection[Sequence], num_tenants: int) -> list[Sequence]:
        """The running sequences that may be paused for a sequence, if that is within its tenant's share."""
        if num_tenants == 1 or not self._is_within_share(sequence, running, num_tenants):
            return []
        places, pages = self._share(sequence.background, num_tenants)
        found: list[Sequence] = []
        for tenant in {other.tenant for other in running if other.background is sequence.background}:
            own = [s for s in running if s.tenant == tenant and s.background is sequence.background]
            # One sequence of each tenant may run, however much memory it takes.
            is_above = len(own) > places or sum(map(self._pages, own)) > pages
            if tenant != sequence.tenant and len(own) > 1 and is_above:
                found += own
        return [other for other in found if priority_class(other) >= priority_class(sequence)]

    def _share(self, background: bool, num_tenants: int) -> tuple[int, int]:
        """The equal share of each tenant: places, at least one, and pages."""
        places = self._max_running
        if background:
            places -= sum(not sequence.background for sequence in self.running)
        return max(1, places // num_tenants), self._memory.num_pages // num_tenants

    def _pause_order(self, running: Collection[Sequence]) -> Callable[[Sequence], tuple[object, ...]]:
        """The sort key of running sequences; the greatest is paused first."""
        places: Counter[tuple[bool, str]] = Counter()
        pages: Counter[tuple[bool, str]] = Counter()
        for sequence in running:
            places[sequence.background, sequence.tenant] += 1
            pages[sequence.background, sequence.tenant] += self._pages(sequence)

        def order(sequence: Sequence) -> tuple[object, ...]:
            key = sequence.background, sequence.tenant
            has_several = places[key] > 1
            return (
                priority_class(sequence),
                has_several,
                pages[key],
                places[key],
                own_priority(sequence),
                sequence.id,
            )

        return order

    @staticmethod
    def _running_of(sequence: Sequence, running: Collection[Sequence]) -> list[Sequence]:
        """The running sequences of a sequence's tenant."""
        return [
            other for other in running if other.tenant == sequence.tenant and other.background is sequence.background
        ]

    def _of(self, background: bool) -> list[Sequence]:
        """The sequences of the background that run and wait, or all others."""
        return [other for other in (*self.running, *self.waiting) if other.background is background]

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
        return [sequence for sequence in self.running if sequence.background]

    def _pause(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.on_pause(sequence)
        sequence.pause()
        self._queue(sequence)

    def _queue(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda waiting: (*priority_class(waiting), waiting.request.priority, waiting.id))

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
        return can.mixes and not alone

    def _free_pages(self, running: Collection[Sequence]) -> int:
        """Pages that none of the running sequences is expected to need."""
        return self._memory.num_pages - sum(map(self._pages, running))


def priority_class(sequence: Sequence) -> tuple[bool, float]:
    """The sort key of sequences whatever their tenants; the least comes first.

    Those of the background come last. Others go by precedence. Waiting raises a low one up to the usual one.
    """
    precedence: float = sequence.request.precedence
    if precedence > 0:
        precedence = max(0.0, precedence - sequence.age // _SECONDS_PER_PRIORITY)
    return sequence.background, precedence


def own_priority(sequence: Sequence) -> float:
    """The sort key of a tenant's sequences; the least comes first: by priority, less one for each _SECONDS_PER_PRIORITY
    since the arrival.
    """
    return sequence.request.priority - sequence.age // _SECONDS_PER_PRIORITY


def _ahead(sequences: list[Sequence], background: bool) -> list[Sequence]:
    """The sequences that one of the background, or another one, may have to wait for."""
    return sequences if background else [sequence for sequence in sequences if not sequence.background]
