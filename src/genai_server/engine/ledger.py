"""Who is in the engine: every sequence from its acceptance to its one end, and how that is told."""

import logging
import math
from collections.abc import Collection, Iterable
from itertools import chain

from genai_server.engine.outbox import Outbox
from genai_server.engine.reception import Reception
from genai_server.engine.runners.pair import RunnerPair
from genai_server.engine.scheduler import Scheduler
from genai_server.engine.sequence import Sequence
from genai_server.errors import GenaiServerError
from genai_server.generation import FinishReason
from genai_server.messages.generation import Accepted, Failed, Finished
from genai_server.messages.operator import RequestState

log = logging.getLogger(__name__)


class Ledger:
    """The accepted sequences, by connection and key, and those in the reception, which have a place already.

    `num_terminated` counts those that were ended by the operator's option.
    """

    def __init__(self, scheduler: Scheduler, runners: RunnerPair, reception: Reception, outbox: Outbox) -> None:
        self._scheduler = scheduler
        self._runners = runners
        self._reception = reception
        self._outbox = outbox
        self._sequences: dict[tuple[int, int], Sequence] = {}
        self.num_terminated = 0

    @property
    def accepted(self) -> Collection[Sequence]:
        """All that run or wait for their turn."""
        return self._sequences.values()

    @property
    def present(self) -> list[Sequence]:
        """These, and those whose grammars are being compiled, in order of arrival."""
        return sorted(self._everybody(), key=lambda sequence: sequence.id)

    @property
    def num_present(self) -> int:
        """How many these are."""
        return len(self._sequences) + len(self._reception.compiling)

    @property
    def next_deadline(self) -> float:
        """When the first of all must have ended, by the clock."""
        return min((sequence.deadline for sequence in self._everybody()), default=math.inf)

    def accept(self, sequence: Sequence) -> None:
        """It will end in exactly one of `finish`, `fail` and `drop`."""
        self._sequences[sequence.origin] = sequence
        connection, key = sequence.origin
        self._outbox.tell(connection, Accepted(key))

    def find(self, connection: int, key: int) -> Sequence | None:
        """An accepted sequence, if it has not ended."""
        return self._sequences.get((connection, key))

    def named(self, request_id: str) -> list[Sequence]:
        """All whose client calls them so."""
        return [sequence for sequence in self.present if sequence.request.request_id == request_id]

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End it with what it has produced."""
        self.num_terminated += reason is FinishReason.TERMINATED
        connection, key = sequence.origin
        if sequence.origin in self._sequences:
            self.drop(sequence)
            if not reason.is_interruption:
                self._scheduler.answered(sequence)
        else:
            self._reception.forget(connection, key)
            self._outbox.tell(connection, Accepted(key))
        self._outbox.tell(
            connection, Finished(key, reason, sequence.phases(), sequence.num_cached, sequence.num_profiled)
        )

    def finish_late(self, now: float) -> None:
        """End those whose deadline has come, wherever they are."""
        for sequence in [sequence for sequence in self._everybody() if sequence.deadline <= now]:
            self.finish(sequence, FinishReason.TIMEOUT)

    def fail(self, sequences: Iterable[Sequence], error: GenaiServerError) -> None:
        """End them with an error."""
        for sequence in list(sequences):
            log.error("request %s failed: %s", sequence.request.request_id, error)
            self.drop(sequence)
            connection, key = sequence.origin
            self._outbox.tell(connection, Failed(key, error.code, error.message, error.param))

    def drop(self, sequence: Sequence) -> None:
        """Forget it, and free what it holds; nobody is told."""
        del self._sequences[sequence.origin]
        self._scheduler.remove(sequence)
        self._runners.close(sequence)

    def drop_all(self, connection: int) -> None:
        """Their reader has gone."""
        self._reception.forget(connection)
        for sequence in [sequence for sequence in self.accepted if sequence.origin[0] == connection]:
            self.drop(sequence)

    def describe(self, sequences: Iterable[Sequence]) -> list[RequestState]:
        """These as the operator sees them."""
        running = set(self._scheduler.running)
        return [sequence.state(is_running=sequence in running) for sequence in sequences]

    def tell_load(self, *, terminated: bool) -> None:
        """Tell the API processes what has changed of the device's load."""
        self._outbox.tell_load(
            self._scheduler, self._sequences, coming=self._reception.compiling, terminated=terminated
        )

    def _everybody(self) -> Iterable[Sequence]:
        return chain(self._sequences.values(), self._reception.compiling)
