"""The generator worker: receive → schedule → forward → sample → deliver, one turn after another.

Owned by the engine process's main thread. A step is one forward pass, of one sequence or of a batch, so whatever
arrives meanwhile waits for at most one decode step or one prefill chunk.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from msgspec import Struct

from genai_server.engine.guidance import Compiled, Guidance
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
    Accepted,
    CacheReset,
    Cancel,
    Failed,
    Finished,
    GetRuntimeOptions,
    Load,
    PromptLogprobs,
    Refused,
    Reply,
    ResetPrefixCache,
    SetRuntimeOption,
    Stop,
    Submit,
    ToApi,
    Tokens,
)
from genai_server.timing import Clock

log = logging.getLogger(__name__)


class Connected(Struct, frozen=True):
    """An API process has attached."""


class Disconnected(Struct, frozen=True):
    """An API process has gone; nobody waits for its requests any more."""


class GrammarCompiled(Struct, frozen=True):
    """What has come of the grammar that a request waited for."""

    submit: Submit
    compiled: Compiled


Message = (
    Submit
    | Cancel
    | Stop
    | SetRuntimeOption
    | GetRuntimeOptions
    | ResetPrefixCache
    | Connected
    | Disconnected
    | GrammarCompiled
)
Inbox = SimpleQueue[tuple[int, Message]]
Send = Callable[[int, list[ToApi]], None]
Beat = Callable[[int], None]
# Seconds between the heartbeats of an engine that has nothing to do.
_IDLE_BEAT = 0.5


class EngineLoop:
    """Runs the sequences of all connections on one runner.

    `inbox` brings (connection, message) from any thread; `send` delivers to a connection and must not block. `beat` is
    called in every step, and with the number of its tokens when a pass begins.
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
        self.beat: Beat = lambda tokens: None
        self._runners = runners
        self._scheduler = scheduler
        self._inbox = inbox
        self._send = send
        self._clock = clock
        self._options = options
        self._model = runners.generator.model
        self._reception = Reception(scheduler, options, guidance, self._model, clock, self._on_compiled)
        self._sequences: dict[tuple[int, int], Sequence] = {}
        self._loads: dict[int, Load] = {}
        self._outbox: dict[int, list[ToApi]] = {}

    def run_forever(self) -> None:
        """Work until the process ends."""
        while True:
            self.run_one_step()

    def run_one_step(self) -> None:
        """Receive what has arrived, waiting a moment for it if there is nothing to do, and run one forward pass."""
        self._receive()
        self.beat(0)
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
        try:
            while True:
                connection, message = self._inbox.get(block=block, timeout=_IDLE_BEAT)
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
                self._reception.forget(connection, key)
                sequence = self._sequences.get((connection, key))
                if sequence is not None:
                    self._leave(sequence, answered=isinstance(message, Stop))
            case SetRuntimeOption():
                self._set_runtime_option(connection, message)
            case GetRuntimeOptions(call):
                self._tell(connection, Reply(call, self._options.describe(self._sequences.values())))
            case ResetPrefixCache(call):
                self._tell(connection, CacheReset(call, self._runners.forget()))
            case Connected():
                self._loads[connection] = Load()
            case Disconnected():
                self._disconnect(connection)

    def _leave(self, sequence: Sequence, *, answered: bool) -> None:
        """Its reader wants no more of it, but perhaps its figures."""
        if answered:
            self._finish(sequence, FinishReason.STOP)
        else:
            self._drop(sequence)

    def _submit(self, connection: int, message: Submit) -> None:
        try:
            sequence = self._reception.take(connection, message)
        except GenaiServerError as error:
            self._tell(connection, Refused(message.key, error.code, error.message, error.param))
            return
        if sequence is not None:
            self._sequences[sequence.origin] = sequence
            self._tell(connection, Accepted(message.key))

    def _on_compiled(self, connection: int, submit: Submit, compiled: Compiled) -> None:
        self._inbox.put((connection, GrammarCompiled(submit, compiled)))

    def _go_on(self, connection: int, message: GrammarCompiled) -> None:
        """Consider again who has waited for a grammar."""
        if self._reception.compiled(connection, message.submit, message.compiled):
            self._submit(connection, message.submit)

    def _disconnect(self, connection: int) -> None:
        self._loads.pop(connection, None)  # a stranger was never connected
        self._reception.forget(connection)
        for sequence in [s for s in self._sequences.values() if s.origin[0] == connection]:
            self._drop(sequence)

    def _set_runtime_option(self, connection: int, message: SetRuntimeOption) -> None:
        name = message.request_id
        concerned = [s for s in self._sequences.values() if name is None or s.request.request_id == name]
        refused = None
        if message.option == PROFILING:
            refused = self._profile(message.value, concerned, whole_device=name is None)
        elif message.option == TERMINATE:
            if name is None:
                self._options.terminated = message.value == "1"
            if message.value == "1":
                for sequence in concerned:
                    self._terminate(sequence)
        state = self._options.describe(self._sequences.values())
        # First, so that whoever has read the reply finds the state that it speaks of everywhere.
        self._publish_load()
        self._tell(connection, Reply(message.call, state, matched=bool(concerned) or name is None, refused=refused))

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
            self._finish(sequence, FinishReason.TERMINATED)
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
            self.beat(step.num_tokens * len(step.sequences))
            for sequence in step.sequences:
                sequence.start()
                self._options.before_pass(sequence)
            logits = self._runners.forward(step)
            for sequence in step.sequences:
                self._options.after_pass(sequence, self._sequences.values())
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
            self._finish(sequences[0], FinishReason.TERMINATED)
        except GenaiServerError as error:
            self._fail(sequences, error)
        except Exception:
            log.exception("requests %s met an internal error", [s.request.request_id for s in sequences])
            self._fail(sequences, RunnerFailed("internal error; the server's log has more"))

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
                self._finish(sequence, outcome.reason)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._drop(sequence)
        connection, key = sequence.origin
        self._tell(connection, Finished(key, reason, sequence.phases(), sequence.num_cached))

    def _fail(self, sequences: list[Sequence], error: GenaiServerError) -> None:
        for sequence in list(sequences):
            log.error("request %s failed: %s", sequence.request.request_id, error)
            self._drop(sequence)
            connection, key = sequence.origin
            self._tell(connection, Failed(key, error.code, error.message, error.param))

    def _drop(self, sequence: Sequence) -> None:
        """Forget a sequence and free what it holds."""
        del self._sequences[sequence.origin]
        self._scheduler.remove(sequence)
        self._runners.close(sequence)

    def _tell(self, connection: int, *messages: ToApi) -> None:
        self._outbox.setdefault(connection, []).extend(messages)

    def _deliver(self) -> None:
        """Send what has gathered, all that is for one connection in one piece: its process wakes once, not per row."""
        self._publish_load()
        for connection, messages in self._outbox.items():
            self._send(connection, messages)
        self._outbox.clear()

    def _publish_load(self) -> None:
        """Tell each API process what has changed since it was told."""
        running, waiting = len(self._scheduler.running), len(self._scheduler.waiting)
        own = Counter(connection for connection, _ in self._sequences)
        for connection, last in self._loads.items():
            load = Load(running, waiting, len(self._sequences) - own[connection], self._options.terminated)
            if load != last:
                self._loads[connection] = load
                self._tell(connection, load)
