"""The engine's loop (`EngineLoop`), which the main thread of the engine process runs.

In each step it receives messages, chooses what to run, runs one forward pass for one sequence or a batch, samples
tokens and sends them. A message waits for at most one step.

`Interrupts` shortens this wait by interrupting some passes. A pass that reads a part of one prompt is interrupted when
its request is cancelled or reaches its deadline, or when an operator's call about a request arrives. A pass of
low-priority sequences is interrupted when another request arrives.
"""

import logging
import threading
import time
from collections import abc
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import eq
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np
from msgspec import Struct

from genai_server.engine.admin import AdminCalls
from genai_server.engine.admission import Admission
from genai_server.engine.api_connections import Connected, Disconnected, Inbox, Message, Outbox, Send
from genai_server.engine.kv_cache.kv_events import CachedBlocks
from genai_server.engine.metrics import Meter
from genai_server.engine.profiling.runtime_options import TERMINATE, RuntimeOptionState
from genai_server.engine.requests import RequestTable
from genai_server.engine.runners.base import Interrupted, try_pass
from genai_server.engine.runners.loaded_model import RunnerPair
from genai_server.engine.sampling.continuation import (
    ChoiceThreads,
    NextToken,
    choose_next_token,
    prompt_logprobs,
    slow_grammars,
)
from genai_server.engine.sampling.grammar import Guidance
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.engine.supervisor_link import Heartbeat
from genai_server.errors import RunnerFailed
from genai_server.messages.admin import CancelRequest, ListRequests, SetRuntimeOption
from genai_server.messages.engine_protocol import (
    CachedPrefixes,
    Cancel,
    Progress,
    PromptLogprobs,
    Stop,
    Submit,
    ToEngine,
    Tokens,
    Vectors,
)
from genai_server.messages.generation_request import FinishReason
from genai_server.messages.launch import BEAT_SECONDS, Resize
from genai_server.system.resources import release_free_memory
from genai_server.timing import Clock

log = logging.getLogger(__name__)
# Seconds. A deadline further away is assumed to be after the end of the current pass.
_LONGEST_PASS = 10.0
_UNINTERRUPTED = nullcontext()
# Seconds between two reports of the engine's figures.
_FIGURES_EVERY = 1.0
# Requests that fail in a row before the loop tries whether any can succeed.
_MAX_FAILED = 3


class Interruptible(Protocol):
    """The methods of a runner (the object that runs the model) with which a forward pass in progress is interrupted."""

    def interrupt(self) -> None:
        """Interrupt the pass that is in progress or, if there is none, the next one. The interrupted pass raises
        `Interrupted`. Any thread may call this.
        """
        ...

    def cancel_interrupt(self) -> None:
        """Withdraw an interrupt that came too late for its pass, so that it does not interrupt the next pass. Does
        nothing if there is none.
        """
        ...


class Interrupts:
    """Decides for each arriving message whether it interrupts the forward pass in progress. The engine's loop surrounds
    each pass with `within`, and the thread that receives messages calls `ask`.

    A message that ends the sequence of the pass always interrupts it. Other messages do not interrupt two passes of the
    same prompt in a row, because the prompt might otherwise never be read. `runner` runs the passes, and `has_messages`
    returns whether messages wait for the engine's loop.
    """

    def __init__(self, runner: Interruptible, has_messages: Callable[[], bool]) -> None:
        self._runner = runner
        self._has_messages = has_messages
        self._step: Step | None = None
        # Held while a pass is interrupted, so that the next pass is not interrupted instead.
        self._lock = threading.Lock()

    def within(self, step: Step, seconds: float) -> AbstractContextManager[None]:
        """Return a context manager for the pass of `step`; within it, the pass may be interrupted. `seconds` is the
        time until the earliest deadline of the step's sequences.

        A pass that decodes or has several sequences can be interrupted only if all of them have low priority. If a pass
        can be interrupted and messages already wait for the loop, the pass does not begin: the context manager raises
        Interrupted.
        """
        return self._within(step, seconds) if step.is_low_priority or step.is_chunk else _UNINTERRUPTED

    @contextmanager
    def _within(self, step: Step, seconds: float) -> Iterator[None]:
        self._step = step
        alarm = threading.Timer(seconds, self._end, [step])
        alarm.daemon = True
        try:
            if self._has_messages():
                raise Interrupted
            if step.is_chunk and seconds <= _LONGEST_PASS:
                alarm.start()
            with _counted(step):
                yield
        finally:
            alarm.cancel()
            with self._lock:
                self._step = None
                self._runner.cancel_interrupt()

    def ask(self, connection: int, message: ToEngine) -> None:
        """Interrupt the pass in progress if `message`, which has just arrived, must not wait until the end of the pass.

        The message must already be in the inbox of the engine's loop. `connection` is the number of the connection from
        which it came. Any thread may call this.
        """
        step = self._step
        if step is not None and _interrupts(message, connection, step):
            self._end(step)

    def _end(self, step: Step) -> None:
        with self._lock:
            if self._step is step:
                self._runner.interrupt()


@contextmanager
def _counted(step: Step) -> Iterator[None]:
    """Context manager around the pass of `step`. If the pass reads a part of one prompt, the attribute
    `was_interrupted` of its sequence then says whether it was interrupted.
    """
    is_interrupted = False
    try:
        yield
    except Interrupted:
        is_interrupted = True
        raise
    finally:
        if step.is_chunk:
            step.sequences[0].was_interrupted = is_interrupted


def _interrupts(message: ToEngine, connection: int, step: Step) -> bool:
    """Return whether a message that came from the connection with the number `connection` must interrupt the pass of
    `step`.
    """
    if isinstance(message, Submit):
        return step.is_low_priority and not message.request.low_priority
    if not step.is_chunk:
        return False
    sequence = step.sequences[0]
    if _ends(message, connection, sequence):
        return True
    is_call = isinstance(message, CancelRequest | SetRuntimeOption)
    is_call = is_call or (isinstance(message, ListRequests) and message.name is not None)
    return is_call and not sequence.was_interrupted


def _ends(message: ToEngine, connection: int, sequence: Sequence) -> bool:
    """Return whether a message that came from the connection with the number `connection` ends `sequence`.

    The answer is also yes for a message that names the sequence's request by an id that several requests have, although
    such a message ends no sequence.
    """
    match message:
        case Cancel(key):
            return sequence.origin == (connection, key)
        case CancelRequest(name=name):
            return sequence.is_named(name)
        case SetRuntimeOption(option=option, value="1", name=name) if option == TERMINATE:
            return name is None or sequence.is_named(name)
        case _:
            return False


class EngineLoop:
    """Runs all requests of one engine, from their messages to their answers. The engine process creates it and calls
    `run_forever`; other threads put messages into its attribute `inbox`.

    `scheduler` chooses each pass, and `runners` run the model. `options` has what operators can set, and `guidance` the
    grammars. `send` passes a list of messages to the connection with a number. `heartbeat` is sent to the supervisor
    (the process that starts engines and restarts them) before each pass, and regularly while there is nothing to run.
    `clock` returns the time in seconds.
    """

    def __init__(
        self,
        runners: RunnerPair,
        scheduler: Scheduler,
        options: RuntimeOptionState,
        guidance: Guidance,
        send: Send,
        *,
        heartbeat: Heartbeat | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._leaving = False
        self._has_worked = False
        self._is_stalled = False  # whether no sequence can take part in a step until a message arrives
        self._runners, self._loaded = runners, runners.loaded
        self._scheduler = scheduler
        self.inbox: Inbox = SimpleQueue()  # takes messages from any thread
        # Any thread may ask it.
        self.interrupts = Interrupts(runners.main, lambda: not self.inbox.empty())
        self._heartbeat = heartbeat or Heartbeat()
        self._clock = clock
        self._options = options
        self._model = runners.main.model
        self._outbox = Outbox(send)
        self._send = self._outbox.send
        self._requests = RequestTable(scheduler, runners, self._outbox)
        self._meter = Meter()
        self._admission = Admission(self._requests, options, guidance, runners, self._meter, self.inbox, clock)
        self._admin = AdminCalls(runners, scheduler, options, self._requests, self._forward)
        self._choice_threads = ChoiceThreads(self._model.eos_token_ids)
        self._slow: set[Sequence] = set()  # sequences of this step whose tokens other threads choose
        self._next_figures = clock() + _FIGURES_EVERY
        scheduler.before_first_chunk, scheduler.on_preempt = self._admission.match_again, self._preempt
        if self._loaded.draft_model is not None:
            scheduler.draft_with(self._loaded.draft_model)

    def run_forever(self) -> None:
        """Run steps until `leave` is called. Raises the error of a step that cannot be attributed to requests, which
        must end the process.
        """
        while not self._leaving:
            self.run_one_step()

    def leave(self) -> None:
        """Make `run_forever` return after the pass in progress, so that the engine process can end in an orderly way.
        Any thread may call this.
        """
        self._leaving = True
        self.inbox.put((0, lambda: None))  # wakes an idle loop

    def run_one_step(self) -> None:
        """Receive messages and run one forward pass. If there is nothing to run, wait for messages for a limited time
        instead.

        After several requests in a row have failed, a pass for no request is tried, and the runner's error is raised if
        that pass fails, too.
        """
        self._receive()
        now = self._clock()
        self._requests.finish_late(now)
        if now >= self._next_figures:
            self._next_figures = now + _FIGURES_EVERY
            if self._loaded.disk_cache is not None:
                self._loaded.disk_cache.store()
            self._heartbeat.kv_bytes = self._loaded.kv_bytes
            self._outbox.send_figures(self._meter.figures(self._scheduler, self._requests, self._options, self._loaded))
        self._scheduler.make_room()
        admitted = self._scheduler.admit()
        self._options.choose(self._scheduler.running, self._scheduler.waiting)
        for sequence in admitted:
            self._admission.open(sequence, self._scheduler.seconds_per_token)
        if self._loaded.disk_cache is not None:
            for sequence in self._loaded.disk_cache.late(self._clock()):
                self._admission.prefix_loaded(sequence)
        self._place()
        self._deliver()
        step = self._scheduler.next_step()
        self._is_stalled = step is None
        if step is None:
            self._beat(0)
        else:
            self._forward(step)
        self._deliver()
        if self._requests.num_failed >= _MAX_FAILED:
            self._try_pass()

    def _beat(self, tokens: int) -> None:
        self._heartbeat.beat(tokens, len(self._requests), self._admission.num_arrived)

    # receive

    def _receive(self) -> None:
        block = self._scheduler.is_idle or self._is_stalled
        if not block and self.inbox.empty():
            return
        patience = self._patience if block else None
        try:
            while True:
                connection, message = self.inbox.get(block, patience)
                block = False
                self._handle(connection, message)
        except Empty:
            if self._scheduler.is_idle and self._has_worked:
                self._has_worked = False
                release_free_memory()

    @property
    def _patience(self) -> float:
        """Seconds for which a loop that has nothing to run waits for a message."""
        deadline = self._requests.next_deadline
        if self._loaded.disk_cache is not None:
            deadline = min(deadline, self._loaded.disk_cache.next_deadline)
        return min(BEAT_SECONDS, max(0.0, deadline - self._clock()))

    def _handle(self, connection: int, message: Message) -> None:
        match message:
            case Submit():
                self._admission.submit(connection, message)
            case Cancel(key) | Stop(key):
                self._requests.abandon(connection, key, answered=isinstance(message, Stop))
            case Resize(num_bytes):
                self._loaded.resize(num_bytes)
                self._scheduler.make_room()
                self._loaded.fit_memory()
            case Connected():
                self._outbox.connect(connection)
                if self._loaded.cached_blocks is not None:
                    self._send(connection, CachedPrefixes(list(self._loaded.cached_blocks.hashes), []))
                self._next_figures = self._clock()  # it has none yet
            case Disconnected():
                self._outbox.disconnect(connection)
                self._admission.disconnected(connection)
                self._requests.drop_all(connection)
            case Struct():
                self._send(connection, self._admin.reply(message))
            case call:
                call()

    # forward, sample, deliver

    def _preempt(self, sequence: Sequence) -> None:
        """Free the KV cache slot of a sequence that the scheduler makes wait again (preempts), and count the
        preemption. The sequence's tokens may stay in the slot as a cached prefix.
        """
        self._runners.close(sequence)
        self._meter.preempted(sequence)

    def _place(self) -> None:
        running = self._scheduler.running
        for sequence in self._runners.outgrown(running):
            with self._requests.failing([sequence]):
                self._runners.reopen(sequence)

    def _forward(self, step: Step) -> None:
        """Run the pass of `step`, sample tokens from its results, and send them. If the pass fails, its sequences end
        with the error. The times of failed passes are not recorded.
        """
        self._has_worked = True
        num_before = sum(sequence.num_produced for sequence in step.sequences)
        try:
            seconds = self._run(step)
        except Exception as error:
            self._requests.failed(step.sequences, error)
            return
        self._outbox.deliver()
        try:
            self._scheduler.observe(step, seconds)
            num_tokens = sum(sequence.num_produced for sequence in step.sequences) - num_before
            self._options.observe(step, seconds * min(1, len(step.chunks) / max(1, num_tokens)))
            self._meter.passed(step, seconds)
        except Exception as error:
            self._requests.failed([], error)  # no request fails, because its tokens are sent

    def _try_pass(self) -> None:
        """Run a pass for no request, to find out whether passes can succeed at all. If the pass fails, its error is
        raised, which ends the engine.

        Some faults, such as an illegal access to a device's memory, last as long as the process; but a request that
        always fails must not end the process. Nothing is done while no KV cache slot is free; the loop then calls this
        method again later.
        """
        if len(self._scheduler.running) >= self._scheduler.capacity.running:
            return
        self._requests.num_failed = 0
        self._beat(1)
        try:
            try_pass(self._runners.main)
        except Exception:
            log.error("%d requests in a row have failed, and so does any pass: the engine exits", _MAX_FAILED)
            raise

    def _run(self, step: Step) -> float:
        """Run the pass of `step`, and sample tokens from its results. Returns the seconds that this took. Raises the
        runner's error if the pass fails or is interrupted.
        """
        started = self._clock()
        self._beat(step.num_tokens)
        for sequence in step.sequences:
            sequence.start()
        self._options.before_step(step)
        until_deadline = min(sequence.deadline for sequence in step.sequences) - started
        try:
            with self.interrupts.within(step, until_deadline):
                scores = self._runners.forward(step)
        except Exception:
            self._options.drop_step(step)
            raise
        self._requests.num_failed = 0
        for chunk in step.chunks:
            self._scheduler.count_tokens(chunk.sequence, chunk.num_tokens - len(chunk.draft))
        self._options.after_step(step, self._requests)
        has_grammars = any(sequence.guide is not None for sequence in step.sequences)
        self._slow = slow_grammars(step.sequences) if has_grammars else set()
        for chunk, chunk_scores in zip(step.chunks, scores, strict=True):
            try:
                self._advance(chunk.sequence, chunk_scores, chunk.draft)
            except Exception as error:
                self._requests.failed([chunk.sequence], error)
        return self._clock() - started

    def _advance(self, sequence: Sequence, scores: Scores, draft: abc.Sequence[int]) -> None:
        """Send the results of a pass for one sequence, such as vectors or log probabilities, and choose the tokens that
        follow if the whole prompt is read.

        `scores` are the results, and `draft` are the draft tokens that the pass has read after the sequence's newest
        token.
        """
        connection, key = sequence.origin
        if scores.vectors is not None:
            if not np.isfinite(scores.vectors).all():
                raise RunnerFailed("the model gave a number for a text that is not finite")
            self._send(connection, Vectors(key, scores.vectors.astype("<f4").tobytes()))
            if sequence.num_unread == 0:
                self._meter.prompt_read(sequence)
                self._requests.finish(sequence, FinishReason.STOP)
            return
        if scored := prompt_logprobs(sequence, scores):
            self._send(connection, PromptLogprobs(key, scored))
        if sequence.request.progress and not sequence.num_produced:
            self._send(connection, Progress(key, sequence.num_read, sequence.num_cached))
        if sequence.num_unread == 0:
            self._choose(sequence, scores, draft)

    def _choose(self, sequence: Sequence, scores: Scores, draft: abc.Sequence[int]) -> None:
        """Choose the token that follows the sequence's newest token and then, as long as each chosen token is the one
        in the draft, the token that follows it. The chosen tokens are sent.

        `scores` are the results of the pass, and `draft` are the draft tokens that it has read. Without a draft, a
        token whose grammar is slow is chosen in another thread. Drafts are too short to need that.
        """
        last = sequence.last
        if sequence in self._slow and not draft:
            self._choice_threads.choose(
                sequence,
                scores,
                lambda chosen: self.inbox.put((0, partial(self._token_chosen, sequence, last, chosen))),
            )
            return
        if last is None:  # counted even if the answer has no token
            self._meter.prompt_read(sequence)
        chosen: list[int] = []
        for position in range(len(draft) + 1):
            at = scores.at(position) if draft else scores
            outcome = choose_next_token(sequence, at, self._model.eos_token_ids)
            self._send_tokens(sequence, outcome)
            chosen += outcome.tokens
            if outcome.reason is not None or chosen != draft[: position + 1]:
                break
        if chosen:
            self._produced(sequence, len(chosen), last)
        if draft:
            num_accepted = sum(map(eq, chosen, draft))  # only the last may differ
            self._runners.of(sequence).accept(sequence.id, draft[:num_accepted])
            sequence.num_read += num_accepted
            self._scheduler.verified(sequence, len(draft), num_accepted)
            self._meter.verified(len(draft), num_accepted)
        if outcome.reason is not None:
            self._requests.finish(sequence, outcome.reason)

    def _token_chosen(self, sequence: Sequence, last: float | None, chosen: Future[NextToken]) -> None:
        """Send a token that another thread has chosen for `sequence`. Does nothing if the sequence has ended meanwhile.

        `last` is the time of the sequence's previous token; None if there is none. `chosen` has the result of the other
        thread.
        """
        sequence.is_choosing = False
        if sequence not in self._requests:
            return
        with self._requests.failing([sequence]):
            outcome = chosen.result()
            self._send_tokens(sequence, outcome)
            if outcome.tokens:
                self._produced(sequence, 1, last)
            if outcome.reason is not None:
                self._requests.finish(sequence, outcome.reason)

    def _produced(self, sequence: Sequence, num_tokens: int, last: float | None) -> None:
        """Count `num_tokens` new tokens of `sequence` for the metrics and for profiles. `last` is the time of the
        previous token; None if there was none.
        """
        self._meter.produced(sequence, num_tokens, last)
        self._options.produced(sequence)

    def _send_tokens(self, sequence: Sequence, outcome: NextToken) -> None:
        connection, key = sequence.origin
        if outcome.tokens:
            self._send(connection, Tokens(key, outcome.tokens, outcome.logprobs))

    def _deliver(self) -> None:
        self._requests.send_load(terminated=self._options.terminated)
        if self._loaded.cached_blocks is not None:
            self._send_prefixes(self._loaded.cached_blocks)
        self._outbox.deliver()
        if self._loaded.kv_events is not None:
            self._loaded.kv_events.publish()

    def _send_prefixes(self, blocks: CachedBlocks) -> None:
        changes = blocks.changes()
        added = [block for stored in changes.stored for block in stored.hashes]
        if added or changes.removed:
            self._outbox.send_all(CachedPrefixes(added, changes.removed))
