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

from genai_server.engine.runners.base import Interrupted, Logits, Terminated
from genai_server.engine.runners.pair import RunnerPair
from genai_server.engine.runtime_options import PROFILING, TERMINATE, RuntimeOptionState
from genai_server.engine.scheduler import Pass, Scheduler
from genai_server.engine.sequence import Sequence
from genai_server.errors import GenaiServerError, QueueFull, RunnerFailed, SessionTerminated
from genai_server.generation import FinishReason
from genai_server.messages import (
    Accepted,
    CacheReset,
    Cancel,
    Failed,
    Finished,
    GetRuntimeOptions,
    Load,
    Refused,
    Reply,
    ResetPrefixCache,
    SetRuntimeOption,
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


Message = Submit | Cancel | SetRuntimeOption | GetRuntimeOptions | ResetPrefixCache | Connected | Disconnected
Inbox = SimpleQueue[tuple[int, Message]]
Send = Callable[[int, list[ToApi]], None]


class EngineLoop:
    """Runs the sequences of all connections on one runner.

    `inbox` brings (connection, message) from any thread; `send` delivers to a connection and must not block.
    """

    def __init__(
        self,
        runners: RunnerPair,
        scheduler: Scheduler,
        options: RuntimeOptionState,
        *,
        inbox: Inbox,
        send: Send,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._runners = runners
        self._scheduler = scheduler
        self._inbox = inbox
        self._send = send
        self._clock = clock
        self._options = options
        self._model = runners.generator.model
        self._sequences: dict[tuple[int, int], Sequence] = {}
        self._loads: dict[int, Load] = {}
        self._outbox: dict[int, list[ToApi]] = {}
        self._next_id = 0

    def run_forever(self) -> None:
        """Work until the process ends."""
        while True:
            self.run_one_step()

    def run_one_step(self) -> None:
        """Receive what has arrived, waiting for it if there is nothing else to do, and run one forward pass."""
        self._receive()
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
                connection, message = self._inbox.get(block=block)
                block = False
                self._handle(connection, message)
        except Empty:
            return

    def _handle(self, connection: int, message: Message) -> None:
        match message:
            case Submit():
                self._submit(connection, message)
            case Cancel(key):
                sequence = self._sequences.get((connection, key))
                if sequence is not None:
                    self._drop(sequence)
            case SetRuntimeOption():
                self._set_runtime_option(connection, message)
            case GetRuntimeOptions(call):
                self._tell(connection, Reply(call, self._options.describe(self._sequences.values())))
            case ResetPrefixCache(call):
                self._tell(connection, CacheReset(call, self._runners.forget()))
            case Connected():
                self._loads[connection] = Load()
            case Disconnected():
                self._loads.pop(connection, None)  # a stranger was never connected
                for sequence in [s for s in self._sequences.values() if s.origin[0] == connection]:
                    self._drop(sequence)

    def _submit(self, connection: int, message: Submit) -> None:
        origin = (connection, message.key)
        try:
            if self._options.terminated:
                raise SessionTerminated('terminate_session is "1" on this device; set it to "0" to go on')
            sequence = Sequence(self._next_id, origin, message.request, self._clock)
            self._scheduler.add(sequence)
        except (SessionTerminated, QueueFull) as error:
            self._tell(connection, Refused(message.key, error.code, error.message))
            return
        self._next_id += 1
        self._sequences[origin] = sequence
        self._tell(connection, Accepted(message.key))

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
            for sequence in step.sequences:
                sequence.start()
                self._options.before_pass(sequence)
            logits = self._runners.forward(step)
            for sequence in step.sequences:
                self._options.after_pass(sequence, self._sequences.values())
            for sequence, row in zip(step.sequences, logits, strict=True):
                if sequence.num_unread == 0:
                    with self._failing([sequence]):
                        self._sample(sequence, row)
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
        except RunnerFailed as error:
            self._fail(sequences, error)
        except Exception:
            log.exception("requests %s met an internal error", [s.request.request_id for s in sequences])
            self._fail(sequences, RunnerFailed("internal error; the server's log has more"))

    def _sample(self, sequence: Sequence, logits: Logits) -> None:
        token = sequence.sampler.sample(logits)
        if token in self._model.eos_token_ids and not sequence.request.ignore_eos:
            self._finish(sequence, FinishReason.STOP)
            return
        sequence.append(token)
        connection, key = sequence.origin
        if sequence.is_full:
            self._finish(sequence, FinishReason.LENGTH, Tokens(key, [token]))
        else:
            self._tell(connection, Tokens(key, [token]))

    def _finish(self, sequence: Sequence, reason: FinishReason, *last: ToApi) -> None:
        self._drop(sequence)
        connection, key = sequence.origin
        self._tell(connection, *last, Finished(key, reason, sequence.phases(), sequence.num_cached))

    def _fail(self, sequences: list[Sequence], error: GenaiServerError) -> None:
        for sequence in list(sequences):
            log.error("request %s failed: %s", sequence.request.request_id, error)
            self._drop(sequence)
            connection, key = sequence.origin
            self._tell(connection, Failed(key, error.code, error.message))

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
