"""The generator worker: receive → schedule → forward → sample → deliver, one turn after another.

Owned by the engine process's main thread. A step is one forward pass, of one sequence or of a batch, so whatever
arrives meanwhile waits for at most one decode step or one prefill chunk.
"""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty

from genai_server.engine.guidance import Compiled, Guidance
from genai_server.engine.inbox import Connected, Disconnected, GrammarCompiled, Inbox, Message, Question
from genai_server.engine.ledger import Ledger
from genai_server.engine.outbox import Outbox, Send
from genai_server.engine.outcome import next_outcome, prompt_logprobs
from genai_server.engine.reception import Reception
from genai_server.engine.runners.base import Interrupted, Logits, Terminated
from genai_server.engine.runners.pair import RunnerPair
from genai_server.engine.runtime_options import PROFILING, TERMINATE, RuntimeOptionState
from genai_server.engine.scheduler import Pass, Scheduler
from genai_server.engine.sequence import Sequence
from genai_server.errors import GenaiServerError, RunnerFailed
from genai_server.generation import FinishReason
from genai_server.messages import (
    CacheReset,
    Cancel,
    CancelRequest,
    GetRuntimeOptions,
    ListRequests,
    PromptLogprobs,
    Refused,
    Reply,
    RequestList,
    RequestState,
    ResetPrefixCache,
    SetRuntimeOption,
    Stop,
    Submit,
    ToApi,
    Tokens,
)
from genai_server.timing import Clock

log = logging.getLogger(__name__)


class EngineLoop:
    """Runs the sequences of all connections on one runner.

    `inbox` brings (connection, message) from any thread; `send` delivers to a connection and must not block.
    """

    def __init__(
        self,
        runners: RunnerPair,
        scheduler: Scheduler,
        options: RuntimeOptionState,
        guidance: Guidance,
        *,
        inbox: Inbox,
        send: Send,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._runners = runners
        self._scheduler = scheduler
        self._inbox = inbox
        self._clock = clock
        self._options = options
        self._model = runners.generator.model
        self._reception = Reception(scheduler, options, guidance, self._model, clock, self._on_compiled)
        self._outbox = Outbox(send)
        self._tell = self._outbox.tell
        self._ledger = Ledger(scheduler, runners, self._reception, self._outbox)

    def run_forever(self) -> None:
        """Work until the process ends."""
        while True:
            self.run_one_step()

    def run_one_step(self) -> None:
        """Receive what has arrived, waiting for it if there is nothing else to do, and run one forward pass."""
        self._receive()
        self._ledger.finish_late(self._clock())
        admitted = self._scheduler.admit()
        self._options.choose(self._scheduler.running)
        for sequence in admitted:
            self._open(sequence)
        self._move()
        self._deliver()
        step = self._scheduler.next_pass()
        if step is not None:
            self._forward(step)
        self._deliver()

    # receive

    def _receive(self) -> None:
        block = self._scheduler.is_idle
        deadline = self._ledger.next_deadline if block else math.inf
        patience = None if deadline == math.inf else max(0.0, deadline - self._clock())
        try:
            while True:
                connection, message = self._inbox.get(block, patience)
                block = False
                self._handle(connection, message)
        except Empty:
            return

    def _handle(self, connection: int, message: Message) -> None:
        match message:
            case Submit():
                self._submit(connection, message)
            case GrammarCompiled():
                self._go_on(connection, message)
            case Cancel(key) | Stop(key):
                self._leave(connection, key, answered=isinstance(message, Stop))
            case Connected():
                self._outbox.connect(connection)
            case Disconnected():
                self._outbox.disconnect(connection)
                self._ledger.drop_all(connection)
            case _:
                self._tell(connection, self._reply(message))

    def _reply(self, message: Question) -> ToApi:
        """The answer to an operator, or what was asked for is done with it."""
        match message:
            case SetRuntimeOption():
                return self._set_runtime_option(message)
            case GetRuntimeOptions(call):
                return Reply(call, self._options.describe(self._ledger.accepted))
            case ResetPrefixCache(call):
                return CacheReset(call, self._runners.forget())
            case ListRequests(call):
                return RequestList(call, self._ledger.describe(self._ledger.present))
            case CancelRequest(call, name):
                return RequestList(call, self._cancel(name))

    def _cancel(self, name: str) -> list[RequestState]:
        """End requests for somebody who need not be their reader."""
        sequences = self._ledger.named(name)
        ended = self._ledger.describe(sequences)
        for sequence in sequences:
            self._ledger.finish(sequence, FinishReason.CANCELLED)
        self._ledger.tell_load(terminated=self._options.terminated)
        return ended

    def _leave(self, connection: int, key: int, *, answered: bool) -> None:
        """A reader wants no more of an answer, but perhaps its figures."""
        self._reception.forget(connection, key)
        sequence = self._ledger.find(connection, key)
        if sequence is not None and answered:
            self._ledger.finish(sequence, FinishReason.STOP)
        elif sequence is not None:
            self._ledger.drop(sequence)

    def _submit(self, connection: int, message: Submit) -> None:
        try:
            sequence = self._reception.take(connection, message)
        except GenaiServerError as error:
            self._tell(connection, Refused(message.key, error.code, error.message, error.param, error.retry_after))
            return
        if sequence is not None:
            self._ledger.accept(sequence)

    def _on_compiled(self, connection: int, submit: Submit, compiled: Compiled) -> None:
        self._inbox.put((connection, GrammarCompiled(submit, compiled)))

    def _go_on(self, connection: int, message: GrammarCompiled) -> None:
        """Consider again who has waited for a grammar."""
        if self._reception.compiled(connection, message.submit, message.compiled):
            self._submit(connection, message.submit)

    def _set_runtime_option(self, message: SetRuntimeOption) -> Reply:
        name = message.request_id
        concerned = [s for s in self._ledger.accepted if name is None or s.request.request_id == name]
        refused = None
        if message.option == PROFILING:
            refused = self._profile(message.value, concerned, whole_device=name is None)
        elif message.option == TERMINATE:
            if name is None:
                self._options.terminated = message.value == "1"
            if message.value == "1":
                for sequence in concerned:
                    self._terminate(sequence)
        state = self._options.describe(self._ledger.accepted)
        # First, so that whoever has read the reply finds the state that it speaks of everywhere.
        self._ledger.tell_load(terminated=self._options.terminated)
        return Reply(message.call, state, matched=bool(concerned) or name is None, refused=refused)

    def _profile(self, value: str, sequences: list[Sequence], *, whole_device: bool) -> str | None:
        """Switch profiling; returns why not, if it cannot be."""
        if value != "0" and not whole_device and not all(map(self._runners.can_profile, sequences)):
            return "an exact request cannot be profiled with this model: alone, as it would run, a row rounds otherwise"
        try:
            self._options.set_profiling(value, sequences, whole_device=whole_device)
            self._options.choose(self._scheduler.running)
        except OSError as error:
            self._options.report_failure(str(error))
        return None

    def _terminate(self, sequence: Sequence) -> None:
        """End a sequence; on a Generator by the library's own option: its next pass raises at once."""
        if sequence.batched or sequence in self._scheduler.waiting:
            self._ledger.finish(sequence, FinishReason.TERMINATED)
            return
        with self._failing([sequence]):
            self._runners.set_runtime_option(sequence, TERMINATE, "1")
            self._forward(Pass([sequence], 1))

    # forward, sample, deliver

    def _open(self, sequence: Sequence) -> None:
        with self._failing([sequence]):
            self._runners.open(sequence)

    def _move(self) -> None:
        for sequence in list(self._scheduler.running):
            with self._failing([sequence]):
                self._options.move(sequence)

    def _forward(self, step: Pass) -> None:
        """Run a pass and sample from it; only one that runs to its end tells how long passes take."""
        with self._failing(step.sequences):
            started = self._clock()
            for sequence in step.sequences:
                sequence.start()
                self._options.before_pass(sequence)
            logits = self._runners.forward(step)
            for sequence in step.sequences:
                self._options.after_pass(sequence, self._ledger.accepted)
            for sequence, positions in zip(step.sequences, logits, strict=True):
                with self._failing([sequence]):
                    self._advance(sequence, positions)
            self._scheduler.observe(step, self._clock() - started)

    @contextmanager
    def _failing(self, sequences: list[Sequence]) -> Iterator[None]:
        """What goes wrong for these sequences ends them and no others."""
        try:
            yield
        except Interrupted:
            pass  # what interrupted the pass is in the inbox; it is given again to those who are left
        except Terminated:
            self._ledger.finish(sequences[0], FinishReason.TERMINATED)
        except GenaiServerError as error:
            self._ledger.fail(sequences, error)
        except Exception:
            log.exception("requests %s met an internal error", [s.request.request_id for s in sequences])
            self._ledger.fail(sequences, RunnerFailed("internal error; the server's log has more"))

    def _advance(self, sequence: Sequence, positions: Logits) -> None:
        """Tell what the logits [positions, vocab_size] of a pass make of a sequence."""
        connection, key = sequence.origin
        if scored := prompt_logprobs(sequence, positions):
            self._tell(connection, PromptLogprobs(key, scored))
        if sequence.num_unread == 0:
            outcome = next_outcome(sequence, positions[-1], self._model.eos_token_ids)
            if outcome.tokens:
                self._tell(connection, Tokens(key, outcome.tokens, outcome.logprobs))
            if outcome.reason is not None:
                self._ledger.finish(sequence, outcome.reason)

    def _deliver(self) -> None:
        self._ledger.tell_load(terminated=self._options.terminated)
        self._outbox.deliver()
