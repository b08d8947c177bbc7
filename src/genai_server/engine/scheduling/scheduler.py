"""Chooses the reads of the next forward pass: pure policy, without model or thread.

A step decodes one token of every decoding sequence, with drafts behind some, and reads chunks of prompts, where the
runner mixes them. Otherwise the batched sequences share a pass, and a chunk has its own. Sequences that are not batched
follow in passes of their own. So prompts cost a running stream one chunk's time for each token, however many prompts
wait. The chunk's size is derived from the measured times of passes (engine/scheduling/step_time.py).

The prompt with the fewest tokens left is read first, so that short prompts do not wait for long ones. Waiting counts
like tokens that have been read, so no prompt waits forever. Short prompts are read together.

A sequence runs only if the batch's memory holds all running sequences at their full lengths. The first waiting sequence
for which there is no memory blocks all others, so that long requests run, too.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterator

from genai_server.engine.scheduling.drafts import NO_DRAFT, Draft, fit_drafts
from genai_server.engine.scheduling.queue_wait import queue_wait
from genai_server.engine.scheduling.scheduler_output import DEFAULT_POLICY, PassRules, Read, Step, StepPolicy
from genai_server.engine.scheduling.step_time import MAX_DRAFTED, MIN_CHUNK, StepTimeModel
from genai_server.engine.sequence import Sequence, SequenceState, common_length
from genai_server.messages.protocol import Capacity

log = logging.getLogger(__name__)
# A waiting prompt gains on the others as if this share of the tokens read in the meantime had been its own.
_AGEING = 0.5
# Seconds of waiting which count as one step of priority.
_SECONDS_PER_PRIORITY = 30.0


class Scheduler:
    """The waiting and running sequences of one device.

    A chunk of a prompt has at most `prefill_chunk` tokens while other sequences decode, and fewer if these would wait
    too long. Otherwise a batched sequence's chunk has at most `idle_chunk` tokens. `runner` fits it to its kernels.
    """

    def __init__(
        self,
        runner: PassRules,
        *,
        max_running: int,
        max_waiting: int,
        max_waiting_tokens: int = 0,
        prefill_chunk: int,
        idle_chunk: int | None = None,
        policy: StepPolicy = DEFAULT_POLICY,
    ) -> None:
        self.waiting: list[Sequence] = []  # by priority and arrival; with those that wait for their grammars
        self.running: list[Sequence] = []  # in order of admission
        self._runner = runner
        self._max_running = max_running
        self._max_waiting = max_waiting
        # Limit of the waiting prompts' tokens together; sequences that can run at once do not count.
        self._max_waiting_tokens = max_waiting_tokens or math.inf
        self._prefill_chunk = prefill_chunk
        self._idle_chunk = max(prefill_chunk, idle_chunk or 0)
        self._policy = policy
        self._memory = policy.memory
        # Called before a prompt's first chunk is chosen: others may have read the same beginning by then.
        self.before_first_chunk: Callable[[Sequence], None] = lambda sequence: None
        self._step_times = StepTimeModel()
        self._round: Iterator[Step] = iter(())

    @property
    def is_idle(self) -> bool:
        """Whether no sequence runs or is ready to run."""
        return not self.running and all(s.state is SequenceState.PREPARING for s in self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence, which the memory holds alone. Raises QueueFull at the limit of requests or of tokens."""
        self._require_capacity(sequence)
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda waiting: waiting.request.priority)

    def _require_capacity(self, sequence: Sequence) -> None:
        if self.num_free() == 0:
            present = len(self.running) + len(self.waiting)
            raise self.capacity.full_of_requests("this device", present, self.queue_wait())
        num_tokens = _num_prompt_tokens(self._late([*self.waiting, sequence]))
        excess = num_tokens - self._max_waiting_tokens
        if excess > 0:
            own, wait = len(sequence.request.prompt), self.queue_wait(int(excess))
            raise self.capacity.full_of_tokens("this device", num_tokens, own, wait)

    @property
    def capacity(self) -> Capacity:
        """The limits of an empty scheduler."""
        tokens = None if self._max_waiting_tokens == math.inf else int(self._max_waiting_tokens)
        return Capacity(self._max_running, self._max_waiting, tokens, self._policy.limited_by)

    def num_free(self) -> int:
        """How many more sequences could be added."""
        return max(0, self._max_running + self._max_waiting - len(self.running) - len(self.waiting))

    def free_tokens(self) -> int | None:
        """How many tokens the prompt of one more sequence may have; None without a limit, or if it might not wait."""
        late = self._late(self.waiting)
        if self._max_waiting_tokens == math.inf or (
            not late and len(self.running) + len(self.waiting) < self._max_running
        ):
            return None
        return max(0, int(self._max_waiting_tokens - _num_prompt_tokens(late)))

    def queue_wait(self, num_tokens: int = 0) -> int:
        """Estimated seconds until a full queue takes one more sequence with `num_tokens` of prompt."""
        return queue_wait(self.running, self.waiting, self._step_times, num_tokens, self._memory)

    def _late(self, waiting: list[Sequence]) -> list[Sequence]:
        """Those of the waiting sequences which the next step does not admit: an upper estimate, in order of arrival."""
        places, pages = self._max_running - len(self.running), self._free_pages()
        for number, sequence in enumerate(waiting):
            places -= 1
            pages -= self._pages(sequence)
            if places < 0 or pages < 0:
                return waiting[number:]
        return []

    def _pages(self, sequence: Sequence) -> int:
        """Pages of memory that a sequence may need."""
        return self._memory.pages(sequence.max_length)

    def _free_pages(self) -> int:
        """Pages that no running sequence may need."""
        return self._memory.num_pages - sum(map(self._pages, self.running))

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting or running sequence."""
        sequences = self.running if sequence.state is SequenceState.RUNNING else self.waiting
        sequences.remove(sequence)

    def admit(self) -> list[Sequence]:
        """Move waiting sequences to the running ones while places are free; returns those moved.

        A sequence that waits for its grammar is passed over, and keeps its place. A sequence with the same prompt as
        one being read waits for that, and then reuses its keys and values. One for which there is no memory is not
        passed over.
        """
        admitted: list[Sequence] = []
        if not self.waiting or len(self.running) == self._max_running:
            return admitted
        pages = self._free_pages()
        for sequence in sorted(self.waiting, key=_priority):
            if len(self.running) == self._max_running:
                break
            is_ready = sequence.state is SequenceState.WAITING
            if is_ready and not any(other.gives_prompt(sequence) for other in self.running):
                pages -= self._pages(sequence)
                if pages < 0:
                    break
                sequence.state = SequenceState.RUNNING
                admitted.append(sequence)
                self.running.append(sequence)
        self.waiting = [sequence for sequence in self.waiting if sequence.state is not SequenceState.RUNNING]
        return admitted

    def next_step(self) -> Step | None:
        """The next pass of this round, or the first of a new one; None if no sequence runs."""
        found = next(self._round, None)
        if found is None:
            self._round = self._passes()
            found = next(self._round, None)
        return found

    @property
    def seconds_per_token(self) -> float:
        """Seconds to read a token of a prompt; 0 before any measurement."""
        return self._step_times.seconds_to_read(1)

    def answered(self, sequence: Sequence) -> None:
        """Learn the length of an answer that ended without a limit."""
        self._step_times.answered(sequence.num_produced)

    def observe(self, step: Step, seconds: float) -> None:
        """Learn how long a pass took."""
        num_decoded = sum(read.num_tokens for read in step.reads if read.decodes)
        self._step_times.passed(num_decoded, step.num_tokens, seconds)

    def _passes(self) -> Iterator[Step]:
        """One round. Each pass is composed when it is asked for, so it sees what has changed since the last one."""
        self._step_times.begin_round()
        batch = [sequence for sequence in self.running if sequence.batched and _decodes(sequence)]
        chunks = self._next_chunks(batch) if self._runner.mixes else []
        if batch or chunks:
            yield Step([*(self._next_tokens(batch) if not chunks else map(Read.next, batch)), *chunks])
        for sequence in [sequence for sequence in self.running if not sequence.batched]:
            if sequence in self.running and not sequence.batched and _decodes(sequence):
                yield Step([Read.next(sequence)])
        alone = [sequence for sequence in self._prompts() if not self._mixes(sequence)]
        if alone:
            yield Step([self._next_chunk(alone[0], self._prompt_budget(alone[0]))])

    def _mixes(self, sequence: Sequence) -> bool:
        """Whether a sequence's tokens can be read in any pass of the batch."""
        return sequence.batched and self._runner.mixes

    def _next_tokens(self, batch: list[Sequence]) -> list[Read]:
        """The newest token of each sequence of the batch, with drafts where they are expected to pay."""
        num_rows = len(batch)
        if not self._policy.speculates or num_rows >= MAX_DRAFTED or not self._step_times.has_timed(num_rows):
            return [Read.next(sequence) for sequence in batch]
        drafts = [self._draft(sequence) for sequence in batch]
        num_drafted = sum(len(draft.tokens) for draft in drafts)
        lengths = [0] * num_rows
        if num_drafted:
            lengths = fit_drafts(drafts, self._step_times.curve(min(num_rows + num_drafted, MAX_DRAFTED)))
        return [
            Read.next(sequence, draft=draft.tokens[:length])
            for sequence, draft, length in zip(batch, drafts, lengths, strict=True)
        ]

    def _draft(self, sequence: Sequence) -> Draft:
        """Tokens that may follow a sequence's newest one.

        A grammar that is slow to follow would have to be followed once for each token of the draft.
        """
        if not self._runner.may_draft(sequence) or (sequence.guide is not None and sequence.guide.is_slow):
            return NO_DRAFT
        try:
            forced = [] if sequence.guide is None else sequence.guide.forced()
            return sequence.drafter.draft(sequence.tokens, sequence.num_left - 1, forced)
        except Exception:  # the engine must not end for what would only save time
            log.exception("request %s: its next tokens could not be drafted", sequence.request.request_id)
            return NO_DRAFT

    def _prompts(self) -> list[Sequence]:
        """The sequences whose prompts are read, the next one first."""
        prompts = [s for s in self.running if not (s.is_decoding or s.is_choosing or s.is_loading)]
        return sorted(prompts, key=self._urgency)

    def _urgency(self, sequence: Sequence) -> tuple[float, float, int]:
        """The sort key of prompts; the least is read first."""
        gained = _AGEING * self._step_times.tokens_read_in(sequence.age)
        return _priority(sequence), sequence.num_unread - gained, sequence.id

    def _next_chunks(self, batch: list[Sequence]) -> list[Read]:
        """Chunks of prompts for the batch's next pass: of the first prompt, and of others that fit into it, too."""
        chunks: list[Read] = []
        budget = 0
        for sequence in filter(self._mixes, self._prompts()):
            if not chunks:
                budget = self._prompt_budget(sequence, batch)
            elif any(_begin_alike(sequence, read.sequence) for read in chunks):
                continue  # it reuses what is read now
            elif budget < min(sequence.num_unread, MIN_CHUNK):
                break
            chunks.append(self._next_chunk(sequence, budget))
            # A pass of several prompts cannot be interrupted, so it is short.
            budget = min(budget, self._prefill_chunk) - chunks[-1].num_tokens
        return chunks

    def _next_chunk(self, sequence: Sequence, budget: int) -> Read:
        """The next chunk of a prompt, in a pass that has a budget of tokens for prompts."""
        if not sequence.num_produced and sequence.num_read == sequence.num_cached:
            self.before_first_chunk(sequence)
        return Read.next(sequence, self._runner.fit_chunk(sequence, budget))

    def _prompt_budget(self, sequence: Sequence, batch: Collection[Sequence] = ()) -> int:
        """How many tokens of prompts to read in a pass that also decodes a batch."""
        num_decoding = sum(other.is_decoding for other in self.running)
        if not num_decoding:
            return self._idle_chunk if sequence.batched else self._prefill_chunk
        return self._step_times.chunk(
            self._prefill_chunk,
            decoding=self._step_times.seconds(len(batch)) if batch else None,
            crowd=(len(self.running) - num_decoding) / num_decoding,
            target=self._policy.itl_target,
        )


def _begin_alike(sequence: Sequence, other: Sequence) -> bool:
    """Whether the prompt of a sequence begins with enough unread tokens of another's to wait for these."""
    if not sequence.reuses_past or sequence.num_read or sequence.cache_salt != other.cache_salt:
        return False
    start = other.num_read
    return start + MIN_CHUNK <= common_length(sequence.tokens, other.tokens)


def _num_prompt_tokens(sequences: list[Sequence]) -> int:
    return sum(len(sequence.request.prompt) for sequence in sequences)


def _decodes(sequence: Sequence) -> bool:
    """Whether a step may read the newest token of a sequence."""
    return sequence.is_decoding and not sequence.is_choosing


def _priority(sequence: Sequence) -> float:
    """The request's priority, less one for each _SECONDS_PER_PRIORITY since its arrival. The lowest comes first."""
    return sequence.request.priority - sequence.age // _SECONDS_PER_PRIORITY
