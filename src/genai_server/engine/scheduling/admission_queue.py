"""Decides which sequences run on a device and which wait (`AdmissionQueue`), and estimates how long a full queue stays
full (`queue_wait`).

A sequence is admitted (begins to run) when the KV cache is expected to have room for it and for all running sequences.
What each of these needs is estimated from the tokens that it has and from the length of recent answers. When the
running sequences need more memory than there is, some are preempted, which means that they wait again and continue
later; a single sequence always runs. If there is no memory for the first waiting sequence, the sequences behind it wait
as well, so that long requests run, too.

Each tenant (API key) has an equal share of the KV cache slots, of the memory and of the queue. What a tenant does not
use, other tenants may. A free slot goes to the tenant that has the fewest running sequences and, among equals, to the
tenant whose turn it is (fair_queue.py). A sequence within its tenant's share does not wait for other tenants: sequences
of tenants above their shares are preempted for it. To avoid a preemption for each request of a tenant, a device with
many slots leaves one slot free for a while after a tenant's last sequence has ended. A single sequence may need more
memory than its tenant's share. It waits until other tenants leave that much, and after a while no other sequence is
admitted before it.

Low-priority sequences, such as those of batch jobs, get only what the others leave. They wait behind all others, their
queue has limits of its own, and they are preempted for others.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush

from genai_server.engine.abilities import PassRules
from genai_server.engine.scheduling.scheduler_output import NOTHING_RESERVED, KvBudget, StepPolicy
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, StepTimeModel
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.fair_queue import FairQueue
from genai_server.messages.engine_protocol import Capacity

# Seconds. Longer estimates would mean little.
_MAX_QUEUE_WAIT = 600


def queue_wait(
    running: Collection[Sequence],
    waiting: Iterable[Sequence],
    step_times: StepTimeModel,
    num_tokens: int = 0,
    *,
    pages: Callable[[Sequence], int] = lambda sequence: 0,
    num_pages: int = 0,
) -> int:
    """Estimate after how many seconds a full queue accepts another sequence. Returns at least 1, and no more than a
    fixed maximum.

    The queue accepts a sequence when an answer among the `running` sequences has ended and `waiting` sequences with at
    least `num_tokens` prompt tokens together have left the queue. The estimate assumes that prompts are read one after
    another, that answers are generated side by side, and that each answer is as long as recent ones. The first waiting
    sequence begins when an answer ends and the KV cache has room for the sequence. The KV cache has `num_pages` pages,
    and the function `pages` returns how many of them a sequence is expected to need. `step_times` has the measured
    times.
    """
    read_time = 0.0
    ends = []
    free = num_pages - sum(map(pages, running))
    for sequence in running:
        if not sequence.is_decoding:
            read_time += step_times.seconds_to_read(sequence.num_unread)
        begins = 0.0 if sequence.is_decoding else read_time
        ends.append((begins + _seconds_to_answer(sequence, step_times), pages(sequence)))
    heapify(ends)
    slots, now, waits = 0, 0.0, deque(waiting)
    while ends:
        now, freed = heappop(ends)
        if not waits:
            break
        slots, free = slots + 1, free + freed
        while waits and slots and pages(waits[0]) <= free:
            begun = waits.popleft()
            num_prompt, needed = len(begun.request.prompt), pages(begun)
            num_tokens -= num_prompt
            slots, free = slots - 1, free - needed
            seconds = step_times.seconds_to_read(num_prompt) + _seconds_to_answer(begun, step_times)
            heappush(ends, (now + seconds, needed))
        if num_tokens <= 0:
            break
    return max(1, min(_MAX_QUEUE_WAIT, math.ceil(now)))


def _seconds_to_answer(sequence: Sequence, step_times: StepTimeModel) -> float:
    return step_times.seconds_to_decode(min(sequence.num_left, step_times.tokens_left(sequence.num_produced)))


# Seconds of waiting which count as one step of priority, and after which a sequence that needs more memory than its
# tenant's share blocks others.
_SECONDS_PER_PRIORITY = 30.0
# Seconds for which a slot stays free for a tenant whose last sequence has ended, on a device with this many slots.
_AWAITED_SECONDS, _MANY_SLOTS = 30.0, 8
# Tokens that an answer is expected to have before any answer has ended.
_ANSWER = 512
# Sequences get memory for this many times the length of recent answers, because a preempted one may have to be read
# again, and at least for this number of further tokens, because a resumed sequence should not be preempted at once.
_MARGIN, _MIN_LEFT = 2, 256


class AdmissionQueue:
    """The waiting and running sequences of one device, with the rules that decide which of them run. It is the base
    class of the scheduler, which chooses what the next forward pass reads for the running ones.

    A sequence enters by `add` and waits until `admit` makes it run; `make_room` may make it wait again; `remove` takes
    it out at its end. `runner` says what passes can do, and `policy` has settings and the size of the KV cache. At most
    `max_running` sequences run and `max_waiting` wait; prompts of those that must wait have at most
    `max_waiting_tokens` tokens together (0 for no limit). These limits, and the shares of tenants, apply to
    low-priority sequences and to all others separately. A tenant that cannot use its turns, for example because it
    waits for memory, may make up for them later, up to `max_credit` tokens.
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
        # By priority and arrival, the low-priority ones last. Includes those whose grammars are being compiled.
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []  # in order of admission
        # Called with each preempted sequence, before another one is admitted.
        self.on_preempt: Callable[[Sequence], None] = lambda sequence: None
        self._runner = runner
        self._policy = policy
        self._max_running = max_running
        self._max_waiting = max_waiting
        # Limit of the waiting prompts' tokens together; sequences that can run at once do not count.
        self._max_waiting_tokens = max_waiting_tokens or math.inf
        self._memory = policy.memory
        self._step_times = StepTimeModel(runner.abilities.tried_passes, runner.abilities.tried_prompt_token)
        # The turns of tenants, for low-priority sequences and for all others.
        self._turns = {low_priority: FairQueue(max_credit) for low_priority in (True, False)}
        # When the last sequence of each tenant ended that was not of low priority.
        self._left: dict[str, float] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done: no sequence runs, and all waiting sequences are still being prepared
        (`SequenceState.PREPARING`).
        """
        return not self.running and all(s.state is SequenceState.PREPARING for s in self.waiting)

    @property
    def has_normal_priority(self) -> bool:
        """Whether any sequence of normal priority runs or waits."""
        is_waiting = bool(self.waiting) and not self.waiting[0].low_priority
        return is_waiting or not all(sequence.low_priority for sequence in self.running)

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence to the waiting ones. The memory must be large enough for the sequence if no other runs.

        Raises QueueFull if the limit of requests or of waiting prompt tokens is reached, and the sequence's tenant
        already uses its equal share of it.
        """
        low_priority, tenant = sequence.low_priority, sequence.tenant
        present = self.present(low_priority=low_priority)
        if not self.capacity.num_free(present, tenant):
            wait = self.queue_wait(low_priority=low_priority)
            raise self.capacity.request_limit_error("this device", present, tenant, wait)
        self._check_tokens(sequence, present)
        waiting = {other.tenant for other in self._of(low_priority) if not other.is_decoding}
        if tenant not in waiting:
            self._turns[low_priority].arrive(tenant, waiting)
        self._queue(sequence)

    def _check_tokens(self, sequence: Sequence, present: Mapping[str, int]) -> None:
        """Raise QueueFull if the prompt of a new sequence and those of the waiting ones have too many tokens together,
        and the sequence's tenant would use more than its share of the limit.

        `present` has the number of running and waiting sequences of each tenant.
        """
        low_priority, prompt_tokens = sequence.low_priority, len(sequence.request.prompt)
        num_tokens = sum(self.waiting_tokens(sequence, low_priority=low_priority).values())
        excess = num_tokens - self._max_waiting_tokens
        if excess <= 0:
            return
        if present.keys() - {sequence.tenant}:
            waiting_tokens = self.waiting_tokens(low_priority=low_priority)
            free = self.capacity.free_tokens(present, waiting_tokens, sequence.tenant)
            if free is None or prompt_tokens <= free:
                return
        wait = self.queue_wait(int(excess), low_priority=low_priority)
        raise self.capacity.token_limit_error("this device", num_tokens, prompt_tokens, wait)

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting or running sequence, because it has ended."""
        sequences = self.running if sequence.state is SequenceState.RUNNING else self.waiting
        sequences.remove(sequence)
        if not sequence.low_priority:
            self._left[sequence.tenant] = self._policy.clock()

    @property
    def capacity(self) -> Capacity:
        """The limits for requests on this device by its settings, whatever runs or waits at the moment."""
        tokens = None if self._max_waiting_tokens == math.inf else int(self._max_waiting_tokens)
        return Capacity(self._max_running, self._max_waiting, tokens, self._policy.limited_by)

    def present(self, *, low_priority: bool = False) -> dict[str, int]:
        """Return the number of running and waiting sequences of each tenant. With `low_priority`, only sequences of low
        priority are counted, and otherwise only those of normal priority.
        """
        return Counter(sequence.tenant for sequence in self._of(low_priority))

    def waiting_tokens(self, *more: Sequence, low_priority: bool = False) -> dict[str, int]:
        """Return, for each tenant, the number of tokens in waiting prompts that the next step cannot admit. With
        `low_priority`, only prompts of low priority are counted, and otherwise only those of normal priority.

        The sequences in `more` are counted as if they waited, too. The numbers may be too high, never too low.
        """
        by_tenant: Counter[str] = Counter()
        for sequence in self._late(*more, low_priority=low_priority):
            by_tenant[sequence.tenant] += len(sequence.request.prompt)
        return by_tenant

    def count_tokens(self, sequence: Sequence, num_tokens: int) -> None:
        """Count `num_tokens` tokens, which were read or generated for `sequence`, as used by its tenant. Tenants that
        have used fewer tokens get the next turn.
        """
        self._turns[sequence.low_priority].serve(sequence.tenant, num_tokens)

    def queue_wait(self, num_tokens: int = 0, *, low_priority: bool = False) -> int:
        """Estimate after how many seconds, at least one, the full queue of this device accepts another sequence. That
        requires that waiting prompts with `num_tokens` tokens together leave the queue.

        With `low_priority`, the estimate is for a sequence of low priority, which waits for all others.
        """
        running, waiting = _ahead(self.running, low_priority), _ahead(self.waiting, low_priority)
        return queue_wait(
            running, waiting, self._step_times, num_tokens, pages=self._pages, num_pages=self._memory.num_pages
        )

    def make_room(self) -> None:
        """Preempt running sequences until there is memory for the next tokens of those that remain. At least one
        remains, because a single sequence always has room.

        Sequences of low priority are preempted first. Among equals, sequences of the tenant that has most memory come
        first, unless the tenant has only one sequence; within a tenant, the sequence with the lowest priority comes
        first, and then the one that arrived last.
        """
        while sum(map(self._least_pages, self.running)) > self._memory.num_pages:
            preemptible = [sequence for sequence in self.running if self._grows(sequence)]
            if not preemptible or len(self.running) == 1:
                return
            self._preempt(max(preemptible, key=self._preemption_order(self.running)))

    def admit(self) -> list[Sequence]:
        """Make waiting sequences run while there are slots and memory for them, and return these sequences. The caller
        must then give each a KV cache slot.

        A sequence that is still being prepared, for example because its grammar is being compiled, is skipped and keeps
        its position. A sequence with the same prompt as one that is being read waits for that one, to reuse its KV
        cache. If there is no memory for a sequence, only sequences of tenants within their shares may be admitted
        before it. Low-priority sequences are preempted for others.
        """
        admitted: list[Sequence] = []
        if not self.waiting:
            return admitted
        queues = self._queues()
        num_tenants = {low_priority: len(self.present(low_priority=low_priority)) for low_priority in (True, False)}
        blocked: Sequence | None = None
        while queues:
            queue = min(queues, key=lambda queue: self._slot_order(queue[0]))
            sequence = queue.popleft()
            num = num_tenants[sequence.low_priority]
            if not any(other.provides_prompt_to(sequence) for other in self.running):
                may_run = blocked is None or self._may_pass(sequence, blocked, num)
                if may_run and self._make_slot(sequence, num):
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
        """Return the waiting sequences that are ready to run, as one queue for each tenant and priority (low or
        normal). Each queue is in the order in which to admit its sequences.
        """
        queues: dict[tuple[bool, str], deque[Sequence]] = {}
        for sequence in sorted(self.waiting, key=lambda sequence: (priority_class(sequence), own_priority(sequence))):
            if sequence.state is SequenceState.WAITING and not sequence.is_choosing:
                queues.setdefault((sequence.low_priority, sequence.tenant), deque()).append(sequence)
        return list(queues.values())

    def _slot_order(self, sequence: Sequence) -> tuple[object, ...]:
        """Return the sort key of `sequence`, which is the first one in a tenant's queue. Of all these first sequences,
        the one with the lowest key gets the next slot.
        """
        num_running = len(self._running_of(sequence, self.running))
        turn = self._turns[sequence.low_priority].turn(sequence.tenant)
        return priority_class(sequence), num_running, turn, sequence.id

    def _may_pass(self, sequence: Sequence, blocked: Sequence, num_tenants: int) -> bool:
        """Return whether `sequence` may be admitted before the sequence `blocked`, which is earlier in the order, but
        for which there is no memory or slot.

        `num_tenants` is the number of tenants that share the device. The answer is no if `blocked` has waited for long
        and its tenant has no running sequence.
        """
        if sequence.low_priority is not blocked.low_priority:
            return False
        has_waited = blocked.age >= _SECONDS_PER_PRIORITY and not self._running_of(blocked, self.running)
        return not has_waited and self._is_within_share(sequence, self.running, num_tenants)

    def _make_slot(self, sequence: Sequence, num_tenants: int) -> bool:
        """Make room for a waiting sequence by preempting others, if that is possible and necessary. Returns whether the
        sequence can run; if it cannot, no sequence is preempted.

        `num_tenants` is the number of tenants that share the device. Low-priority sequences are preempted for others,
        the newest first. If that is not enough for a sequence within its tenant's share, sequences of tenants above
        their shares are preempted.
        """
        preemptible = [] if sequence.low_priority else self._preemptible()
        # A low-priority sequence may always run alone.
        reserved = self._reserved(sequence) if sequence.low_priority and self.running else NOTHING_RESERVED
        staying = [other for other in self.running if other not in preemptible]
        if not sequence.low_priority and self._awaits_others(sequence, staying):
            reserved = KvBudget(1)
        while not self._fits(sequence, staying, reserved):
            above = self._above_share(sequence, staying, num_tenants)
            if not above:
                return False
            staying.remove(max(above, key=self._preemption_order(staying)))
        for other in [other for other in self.running if other not in staying and other not in preemptible]:
            self._preempt(other)
        if preemptible:
            reserved = self._reserved(sequence)
        while preemptible and not self._fits(sequence, self.running, reserved):
            self._preempt(preemptible.pop())
        return True

    def _awaits_others(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Return whether `sequence` may run only if another slot stays free, for a tenant that will probably send a
        request soon. `running` are the sequences that will run besides it.

        Such a tenant has no sequences now, but one of its sequences ended less than _AWAITED_SECONDS ago. No slot has
        to stay free if the sequence's own tenant is within its share even when all such tenants are counted as present.
        Devices with fewer than _MANY_SLOTS slots never keep a slot free.
        """
        if self._max_running < _MANY_SLOTS or self._left.keys() <= {sequence.tenant}:
            return False
        since = self._policy.clock() - _AWAITED_SECONDS
        self._left = {tenant: at for tenant, at in self._left.items() if at > since}
        present = self.present()
        absent = self._left.keys() - present.keys()
        return bool(absent) and not self._is_within_share(sequence, running, len(present) + len(absent))

    def _is_within_share(self, sequence: Sequence, running: Collection[Sequence], num_tenants: int) -> bool:
        """Return whether the tenant of `sequence` uses no more than its share of slots and memory if `sequence` runs in
        addition to the sequences in `running`. `num_tenants` tenants share the device equally.
        """
        slots, pages = self._share(sequence.low_priority, num_tenants)
        of_tenant = [*self._running_of(sequence, running), sequence]
        return len(of_tenant) <= slots and sum(map(self._pages, of_tenant)) <= pages

    def _above_share(self, sequence: Sequence, running: Collection[Sequence], num_tenants: int) -> list[Sequence]:
        """Return those sequences in `running` that may be preempted for `sequence`, because their tenants use more than
        their shares. `num_tenants` tenants share the device equally.

        The list is empty if `sequence` itself would put its tenant above its share. Sequences of more urgent requests,
        and the only sequence of a tenant, are never in it.
        """
        if num_tenants == 1 or not self._is_within_share(sequence, running, num_tenants):
            return []
        slots, pages = self._share(sequence.low_priority, num_tenants)
        preemptible: list[Sequence] = []
        for tenant in {other.tenant for other in running if other.low_priority is sequence.low_priority}:
            of_tenant = [s for s in running if s.tenant == tenant and s.low_priority is sequence.low_priority]
            # One sequence of each tenant may run, however much memory it takes.
            is_above = len(of_tenant) > slots or sum(map(self._pages, of_tenant)) > pages
            if tenant != sequence.tenant and len(of_tenant) > 1 and is_above:
                preemptible += of_tenant
        return [other for other in preemptible if priority_class(other) >= priority_class(sequence)]

    def _share(self, low_priority: bool, num_tenants: int) -> tuple[int, int]:
        """Return the equal share of each of `num_tenants` tenants: a number of slots, at least one, and a number of
        pages of KV cache memory.

        With `low_priority`, only the slots that sequences of normal priority do not use are shared.
        """
        slots = self._max_running
        if low_priority:
            slots -= sum(not sequence.low_priority for sequence in self.running)
        return max(1, slots // num_tenants), self._memory.num_pages // num_tenants

    def _preemption_order(self, running: Collection[Sequence]) -> Callable[[Sequence], tuple[object, ...]]:
        """Return a function that gives a sort key for each sequence in `running`. The sequence with the highest key is
        to be preempted first.
        """
        slots: Counter[tuple[bool, str]] = Counter()
        pages: Counter[tuple[bool, str]] = Counter()
        for sequence in running:
            slots[sequence.low_priority, sequence.tenant] += 1
            pages[sequence.low_priority, sequence.tenant] += self._pages(sequence)

        def order(sequence: Sequence) -> tuple[object, ...]:
            key = sequence.low_priority, sequence.tenant
            has_several = slots[key] > 1
            return (
                priority_class(sequence),
                has_several,
                pages[key],
                slots[key],
                own_priority(sequence),
                sequence.id,
            )

        return order

    @staticmethod
    def _running_of(sequence: Sequence, running: Collection[Sequence]) -> list[Sequence]:
        """Return those sequences in `running` that have the same tenant as `sequence`, and low priority if and only if
        it has.
        """
        return [
            other
            for other in running
            if other.tenant == sequence.tenant and other.low_priority is sequence.low_priority
        ]

    def _of(self, low_priority: bool) -> list[Sequence]:
        """Return all running and waiting sequences of low priority if `low_priority` is set, and otherwise all of
        normal priority.
        """
        return [other for other in (*self.running, *self.waiting) if other.low_priority is low_priority]

    def _fits(self, sequence: Sequence, running: Collection[Sequence], reserved: KvBudget = NOTHING_RESERVED) -> bool:
        """Return whether there are a slot and memory for `sequence` in addition to the sequences in `running` and to a
        part of the KV cache, `reserved`, that must stay free.
        """
        has_slot = len(running) + reserved.slots < self._max_running
        return has_slot and self._pages(sequence) + reserved.pages <= self._free_pages(running)

    def _reserved(self, sequence: Sequence) -> KvBudget:
        """Return the part of the KV cache that low-priority sequences must leave to cached prefixes (tokens of ended
        sequences that later prompts may reuse) of normal priority, once `sequence` has been admitted.

        Running sequences of normal priority and these prefixes together keep at most half of the slots from
        low-priority sequences, so that prefixes do not prevent low-priority sequences from running.
        """
        num_others = sum(not other.low_priority for other in (*self.running, sequence))
        return self._runner.reserved(max(0, self._max_running // 2 - num_others))

    def _preemptible(self) -> list[Sequence]:
        return [sequence for sequence in self.running if sequence.low_priority]

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.on_preempt(sequence)
        sequence.preempt()
        self._queue(sequence)

    def _queue(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda waiting: (*priority_class(waiting), waiting.request.priority, waiting.id))

    def _late(self, *more: Sequence, low_priority: bool = False) -> list[Sequence]:
        """Return the waiting sequences that the next step cannot admit for lack of slots or memory, in their order in
        the queue. With `low_priority`, only sequences of low priority are returned, and otherwise only those of normal
        priority.

        The sequences in `more` are counted as if they waited behind all others. The result may have too many sequences,
        never too few.
        """
        running, waiting = _ahead(self.running, low_priority), [*_ahead(self.waiting, low_priority), *more]
        slots, pages = self._max_running - len(running), self._free_pages(running)
        for number, sequence in enumerate(waiting):
            slots -= 1
            pages -= self._pages(sequence)
            if slots < 0 or pages < 0:
                return [late for late in waiting[number:] if late.low_priority is low_priority]
        return []

    def _pages(self, sequence: Sequence) -> int:
        """Return the number of KV cache pages that `sequence` is expected to need until its end, from the length of
        recent answers.
        """
        if not self._grows(sequence):
            return self._memory.pages(sequence.max_length)
        expected = self._step_times.tokens_left(0)
        expected = _ANSWER if expected == math.inf else _MARGIN * expected
        more = max(_MIN_LEFT, int(expected) - sequence.num_produced)
        return self._memory.pages(min(sequence.max_length, len(sequence.tokens) + more))

    def _least_pages(self, sequence: Sequence) -> int:
        """Return the number of KV cache pages that `sequence` needs at least: for the tokens that it has and those of
        its next pass.
        """
        more = MAX_DRAFTED if self._grows(sequence) else sequence.num_left
        return self._memory.pages(min(sequence.max_length, len(sequence.tokens) + more))

    def _grows(self, sequence: Sequence) -> bool:
        """Return whether `sequence` gets memory token by token, so that it can be preempted. A sequence that
        onnxruntime-genai runs in an `og.Generator` of its own gets all its memory at once.
        """
        can = self._runner.abilities
        alone = sequence.adapter is not None and not can.adapters
        return can.mixes and not alone

    def _free_pages(self, running: Collection[Sequence]) -> int:
        """Return the number of KV cache pages that the sequences in `running` are not expected to need until their
        ends.
        """
        return self._memory.num_pages - sum(map(self._pages, running))


def priority_class(sequence: Sequence) -> tuple[bool, float]:
    """Return the first sort key of sequences, which holds across tenants. The sequence with the lowest key comes first.

    Low-priority sequences come last. Others are ordered by the precedence of their requests, 0 by default; a lower
    number comes first. A precedence above 0, which comes later, falls to 0 as the sequence waits.
    """
    precedence: float = sequence.request.precedence
    if precedence > 0:
        precedence = max(0.0, precedence - sequence.age // _SECONDS_PER_PRIORITY)
    return sequence.low_priority, precedence


def own_priority(sequence: Sequence) -> float:
    """Return the sort key by which sequences of the same tenant are ordered. The sequence with the lowest key comes
    first.

    The key is the priority in the request (a lower number comes first), minus one for each _SECONDS_PER_PRIORITY
    seconds since the request arrived, so that no request waits forever.
    """
    return sequence.request.priority - sequence.age // _SECONDS_PER_PRIORITY


def _ahead(sequences: list[Sequence], low_priority: bool) -> list[Sequence]:
    """Return those of `sequences` for which a new sequence may have to wait.

    For a new sequence of low priority (`low_priority`) these are all, and otherwise only the sequences of normal
    priority.
    """
    return sequences if low_priority else [sequence for sequence in sequences if not sequence.low_priority]
