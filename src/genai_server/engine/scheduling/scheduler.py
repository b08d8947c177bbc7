"""Chooses which tokens the next forward pass reads. `Scheduler` does so for models that generate text, and
`PoolingScheduler` for models that return vectors or scores. This module only decides; it has no model and no thread.

A step is one forward pass. If the runner (the object that runs the model) can mix them, a step decodes one token of
every decoding sequence, some with drafts, and also reads chunks of prompts. Otherwise a step either decodes or reads
one chunk. Sequences that are profiled or do not run in the batch have steps of their own. Thus prompts delay each token
of a running answer by the time of one chunk, however many prompts wait. The size of chunks is computed from the
measured times of passes (engine/scheduling/step_time.py).

The prompts of the tenant (API key) whose turn it is (fair_queue.py) are read first, and among them the prompt with the
fewest unread tokens, so that short prompts do not wait for long ones. The time that a prompt has waited counts like
tokens that are already read, so no prompt waits forever. Several short prompts are read in one pass. A pass that reads
the rest of a tenant's prompt has no chunk of another tenant's longer prompt, because the first token of the answer
would have to wait for that chunk.

While other sequences are present, low-priority sequences read nothing if the model runs on the host's cores. On a GPU
or another device they read as many tokens as do not make a pass noticeably slower. Passes of low-priority sequences
alone are short, or can be interrupted.

`PoolingScheduler` chooses complete texts of all running requests, up to a number of tokens that follows from the
measured times, so that a new request waits for a fraction of a second.
"""

import logging
from collections.abc import Callable, Collection, Iterator

from genai_server.engine.abilities import PassRules
from genai_server.engine.scheduling.admission_queue import AdmissionQueue, own_priority, priority_class
from genai_server.engine.scheduling.drafts import AnswerMemory
from genai_server.engine.scheduling.scheduler_output import DEFAULT_POLICY, ScheduledChunk, Step, StepPolicy
from genai_server.engine.scheduling.speculation import DraftingModel, Speculation
from genai_server.engine.scheduling.step_time import MIN_CHUNK
from genai_server.engine.sequence import Sequence, common_prefix_length
from genai_server.messages.generation_request import PooledText

log = logging.getLogger(__name__)
# A waiting prompt gains on the others as if this share of the tokens read in the meantime had been its own.
_AGEING = 0.5
# Target seconds of a low-priority pass: one that others may have to wait for, and one that can be interrupted, and
# is then lost.
_AWAITED_SECONDS, _INTERRUPTED_SECONDS = 0.1, 0.25


class Scheduler(AdmissionQueue):
    """Chooses the steps (forward passes) of one engine. The engine's loop asks it for each step by `next_step`, and
    reports the duration and the results of the step by `observe` and `verified`.

    A chunk of a prompt has at most `prefill_chunk` tokens while other sequences decode, and fewer if these would wait
    too long. Otherwise it has at most `idle_chunk` tokens if the sequence runs in the batch. `runner` may make a chunk
    smaller, to a size that suits its kernels. `max_running`, `max_waiting` and `max_waiting_tokens` limit the sequences
    that run, the sequences that wait, and the tokens in waiting prompts (0 for no limit); `policy` has other settings.
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
        self._prefill_chunk = prefill_chunk
        self._idle_chunk = max(prefill_chunk, idle_chunk or 0)
        super().__init__(
            runner,
            policy,
            max_running=max_running,
            max_waiting=max_waiting,
            max_waiting_tokens=max_waiting_tokens,
            max_credit=self._idle_chunk,
        )
        self._speculation = Speculation(prefill_chunk)
        # Called before a prompt's first chunk is chosen: others may have read the same beginning by then.
        self.before_first_chunk: Callable[[Sequence], None] = lambda sequence: None
        self._round: Iterator[Step] = iter(())

    @property
    def answers(self) -> AnswerMemory | None:
        """The stored texts of earlier answers, from which drafts are proposed; None if answers are not stored."""
        return self._policy.answers

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence to the waiting ones. Raises QueueFull if the limit of requests or of waiting prompt tokens
        is reached, and the sequence's tenant already uses its equal share of it.
        """
        super().add(sequence)
        name = sequence.request.answer_memory
        if self.answers is not None and name and sequence.request.cache_prompt:
            sequence.earlier_answers = self.answers.of(name)

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting or running sequence, because it has ended. Unless it has low priority, its answer is stored
        as a source of drafts, for whatever reason the answer has ended.
        """
        super().remove(sequence)
        request = sequence.request
        if self.answers is None or not request.answer_memory or sequence.low_priority or not sequence.num_produced:
            return
        try:
            self.answers.add(request.answer_memory, sequence.prompt, sequence.tokens[len(request.prompt) :])
        except Exception:  # the engine must not end for what would only save time
            log.exception("request %s: its answer could not be kept for drafts", request.request_id)

    def next_step(self) -> Step | None:
        """Return the next step, which the caller must run; None if there is nothing to run.

        Steps come in rounds, in which every running sequence gets its turn: a step for the batch, one for each decoding
        sequence that shares no passes with others, and one for a prompt that shares no passes with others.
        """
        step = next(self._round, None)
        if step is None:
            self._round = self._passes()
            step = next(self._round, None)
        return step

    def draft_with(self, model: DraftingModel) -> None:
        """Use the draft model `model`, in addition to drafts from texts, where it is expected to save time."""
        self._speculation.model = model

    @property
    def seconds_per_token(self) -> float:
        """Estimated seconds that the model takes to read one prompt token; 0 before any measurement."""
        return self._step_times.seconds_to_read(1)

    def answered(self, sequence: Sequence) -> None:
        """Record how many tokens the answer of `sequence` has, which has ended by itself. The lengths of running and
        future answers are estimated from it.
        """
        self._step_times.answered(sequence.num_produced)

    def observe(self, step: Step, seconds: float) -> None:
        """Record that the pass of `step` took `seconds` seconds. The times of later passes are estimated from this."""
        # Tokens of a prompt that are read beside others say nothing about passes that have many of them.
        has_low_priority = not step.is_low_priority and any(chunk.sequence.low_priority for chunk in step.chunks)
        counted = step.chunks if has_low_priority else [chunk for chunk in step.chunks if chunk.decodes]
        self._step_times.passed(sum(chunk.num_tokens for chunk in counted), step.num_tokens, seconds)

    def verified(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Record that a pass has verified a draft of `sequence`, and that `num_accepted` of its `num_drafted` tokens
        were accepted.
        """
        self.count_tokens(sequence, num_accepted)
        sequence.num_drafted += num_drafted
        sequence.num_accepted += num_accepted
        self._speculation.count(sequence, num_drafted, num_accepted)

    def _passes(self) -> Iterator[Step]:
        """Yield the steps of one round, in which every running sequence gets its turn: one for the batch, one for each
        decoding sequence that shares no passes with others, and one for a prompt that shares no passes with others.

        Each step is composed when it is requested, so that it takes into account what has changed since the last one.
        """
        self._step_times.begin_round()
        batch = self._batch()
        chunks = self._next_chunks(batch) if self._runner.abilities.mixes else []
        if batch or chunks:
            decoding = self._next_tokens(batch) if not chunks else [ScheduledChunk.next(sequence) for sequence in batch]
            yield Step([*decoding, *(chunks or self._beside(decoding))])
        if self._runner.abilities.mixes and all(sequence.shares_passes for sequence in self.running):
            return
        for sequence in [sequence for sequence in self.running if not sequence.shares_passes]:
            if sequence in self._active() and not sequence.shares_passes and _decodes(sequence):
                yield Step([ScheduledChunk.next(sequence)])
        alone = [sequence for sequence in self._prompts() if not self._mixes(sequence)]
        if alone:
            yield Step([self._next_chunk(alone[0], self._prompt_budget(alone[0]))])

    def _active(self) -> list[Sequence]:
        """Return the running sequences that take part in ordinary steps. Sequences of low priority do so only while no
        sequence of normal priority runs or waits.
        """
        if not self.has_normal_priority:
            return self.running
        return [sequence for sequence in self.running if not sequence.low_priority]

    def _batch(self) -> list[Sequence]:
        """Return the sequences that the next pass decodes together. If all have low priority and the pass cannot be
        interrupted, these are only as many as keep it short.
        """
        batch = [sequence for sequence in self._active() if sequence.shares_passes and _decodes(sequence)]
        if self.has_normal_priority or self._runner.abilities.interrupts:
            return batch
        curve = self._step_times.curve(len(batch))
        batch = sorted(batch, key=self._turn)
        return batch[: max(1, sum(seconds <= _AWAITED_SECONDS for seconds in curve[1:]))]

    def _beside(self, decoding: list[ScheduledChunk]) -> list[ScheduledChunk]:
        """Return chunks of low-priority sequences that may be added to a pass which decodes sequences of normal
        priority: as many tokens as hardly slow the pass. `decoding` are the chunks of the sequences of normal priority.

        The list is empty if the model runs on the host's cores. There, each token also slows the processes that deliver
        the tokens of other sequences, which the times of passes do not show.
        """
        if not self.has_normal_priority or self._runner.abilities.uses_host_cores:
            return []
        low_priority = [s for s in self.running if s.low_priority and self._mixes(s)]
        if not low_priority:
            return []
        low_priority.sort(key=self._turn)
        budget = self._step_times.low_priority_tokens(sum(chunk.num_tokens for chunk in decoding))
        chunks = [ScheduledChunk.next(sequence) for sequence in low_priority if _decodes(sequence)][:budget]
        budget -= len(chunks)
        prompts = sorted((s for s in low_priority if _reads_prompt(s)), key=self._urgency)
        if prompts and budget >= MIN_CHUNK:
            chunks.append(self._next_chunk(prompts[0], budget))
        return chunks

    def _mixes(self, sequence: Sequence) -> bool:
        """Return whether a pass can read tokens of `sequence` together with tokens of other sequences, whether they
        decode or read prompts.
        """
        return sequence.shares_passes and self._runner.abilities.mixes

    def _next_tokens(self, batch: list[Sequence]) -> list[ScheduledChunk]:
        """Return a chunk for each sequence in `batch`: its newest token and, where that is expected to save time, a
        draft.
        """
        if not self._policy.speculates:
            return [ScheduledChunk.next(sequence) for sequence in batch]
        drafts = self._speculation.choose(batch, list(map(self._may_draft, batch)), self._step_times)
        return [ScheduledChunk.next(sequence, draft=draft) for sequence, draft in zip(batch, drafts, strict=True)]

    def _may_draft(self, sequence: Sequence) -> bool:
        """Return whether the next pass may read a draft after the newest token of `sequence`.

        The answer is no if the runner cannot do it, if the sequence is soon to be profiled, or if it has a slow
        grammar, which would have to be followed for each token of the draft.
        """
        is_slow = sequence.guide is not None and sequence.guide.is_slow
        return self._runner.may_draft(sequence) and not is_slow and not sequence.profile.is_awaited

    def _prompts(self) -> list[Sequence]:
        """Return the running sequences whose prompts are not read completely yet, the most urgent one first."""
        return sorted(filter(_reads_prompt, self._active()), key=self._urgency)

    def _urgency(self, sequence: Sequence) -> tuple[object, ...]:
        """Return the sort key of a sequence whose prompt is being read. The prompt of the sequence with the lowest key
        is read first.
        """
        gained = _AGEING * self._step_times.tokens_read_in(sequence.age)
        order = own_priority(sequence), sequence.num_unread - gained, sequence.id
        return priority_class(sequence), self._turn(sequence), order

    def _turn(self, sequence: Sequence) -> tuple[float, int]:
        """Return the sort key of a sequence by the turns that tenants take. The tenant whose sequences have the lowest
        key has the next turn.
        """
        return self._turns[sequence.low_priority].turn(sequence.tenant)

    def _next_chunks(self, batch: list[Sequence]) -> list[ScheduledChunk]:
        """Return the chunks of prompts for the next pass, which also decodes the sequences in `batch`: a chunk of the
        most urgent prompt, and chunks of further prompts if there is room in the pass.

        Of a further prompt of the same tenant, the pass may read a part; a prompt of another tenant must fit into it
        completely.
        """
        chunks: list[ScheduledChunk] = []
        budget = 0
        for sequence in filter(self._mixes, self._prompts()):
            if not chunks:
                budget = self._prompt_budget(sequence, batch)
            elif any(_waits_for_common_prefix(sequence, chunk.sequence) for chunk in chunks):
                continue  # it reuses what is read now
            elif budget < min(sequence.num_unread, MIN_CHUNK):
                break
            elif sequence.num_unread > budget and any(chunk.sequence.tenant != sequence.tenant for chunk in chunks):
                continue
            chunks.append(self._next_chunk(sequence, budget))
            # A pass of several prompts cannot be interrupted, so it is short.
            budget = min(budget, self._prefill_chunk) - chunks[-1].num_tokens
        return chunks

    def _next_chunk(self, sequence: Sequence, budget: int) -> ScheduledChunk:
        """Return the next chunk of a sequence's prompt, for a pass that has room for `budget` prompt tokens. Before the
        first chunk, the KV cache is searched again for tokens that other sequences have read meanwhile.
        """
        if not sequence.num_produced and sequence.num_read == sequence.num_cached:
            self.before_first_chunk(sequence)
        return ScheduledChunk.next(sequence, self._runner.fit_chunk(sequence, budget))

    def _prompt_budget(self, sequence: Sequence, batch: Collection[Sequence] = ()) -> int:
        """Return how many prompt tokens the next pass should read, so that the sequences in `batch`, which it also
        decodes, do not wait too long.

        `sequence` is the one with the most urgent prompt.
        """
        active = self._active()
        num_decoding = sum(other.is_decoding for other in active)
        budget = self._idle_chunk if sequence.batched else self._prefill_chunk
        if num_decoding:
            budget = self._step_times.chunk(
                self._prefill_chunk,
                decoding=self._step_times.seconds(len(batch)) if batch else None,
                crowd=(len(active) - num_decoding) / num_decoding,
                target=self._policy.itl_target,
            )
        if not sequence.low_priority:
            return budget
        seconds = _INTERRUPTED_SECONDS if self._runner.abilities.interrupts else _AWAITED_SECONDS
        fitting = self._step_times.tokens_read_in(seconds) or self._prefill_chunk
        return min(budget, max(MIN_CHUNK, int(fitting)))


def _waits_for_common_prefix(sequence: Sequence, other: Sequence) -> bool:
    """Return whether `sequence` should wait before it reads its prompt, until the sequence `other` has read the tokens
    with which both prompts begin. Their keys and values are then in the KV cache, and need not be computed twice.
    """
    if not sequence.reuses_past or sequence.num_read or sequence.cache_salt != other.cache_salt:
        return False
    start = other.num_read
    return start + MIN_CHUNK <= common_prefix_length(sequence.tokens, other.tokens)


def _decodes(sequence: Sequence) -> bool:
    """Return whether a step may read the newest token of `sequence` to decode the next token."""
    return sequence.is_decoding and not sequence.is_choosing


def _reads_prompt(sequence: Sequence) -> bool:
    """Return whether a step may read a part of the prompt of `sequence`."""
    return not (sequence.is_decoding or sequence.is_choosing or sequence.is_loading)


# The target in seconds of a pass, within these numbers of tokens. Fewer would leave the cores idle at its edges;
# more would not be faster.
_SECONDS = 0.25
_MIN_TOKENS, _MAX_TOKENS = 512, 8192
# Most texts of a step: their vectors go out at once, and an API process with too many unread bytes is disconnected.
_MAX_TEXTS = 256


class PoolingScheduler(Scheduler):
    """Scheduler for models that return a vector or a score for each text of a request, such as embedding models. Each
    step reads complete texts of one or more requests.
    """

    def _passes(self) -> Iterator[Step]:
        budget = int(min(_MAX_TOKENS, max(_MIN_TOKENS, self._step_times.tokens_read_in(_SECONDS))))
        texts_left = _MAX_TEXTS
        chunks: list[ScheduledChunk] = []
        for sequence in sorted(self._active(), key=self._urgency):
            if (chunk := _next_texts(sequence, budget, texts_left, is_first=not chunks)) is not None:
                chunks.append(chunk)
                budget -= chunk.num_tokens
                texts_left -= len(chunk.texts)
        if chunks:
            yield Step(chunks)


def _next_texts(sequence: Sequence, budget: int, maximum: int, *, is_first: bool) -> ScheduledChunk | None:
    """Return a chunk with the next texts of the request of `sequence`: at most `maximum` texts with at most `budget`
    tokens together. None if there is no room for any text.

    With `is_first`, the chunk has at least one text, even if this text has more tokens than `budget`.
    """
    texts: list[PooledText] = []
    num_tokens = 0
    for text in sequence.request.texts[sequence.num_texts : sequence.num_texts + maximum]:
        if num_tokens + text.num_tokens > budget and (texts or not is_first):
            break
        texts.append(text)
        num_tokens += text.num_tokens
    return ScheduledChunk.next(sequence, num_tokens, texts=texts) if texts else None
