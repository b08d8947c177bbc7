"""The table of all requests in an engine (`RequestTable`). A request is in it from its arrival until the one message
that tells the API process how the request ended.
"""

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from genai_server.engine.api_connections import Outbox
from genai_server.engine.runners.base import Interrupted, Terminated
from genai_server.engine.runners.loaded_model import RunnerPair
from genai_server.engine.scheduling.scheduler import Scheduler
from genai_server.engine.sequence import Sequence, SequenceState
from genai_server.errors import GenaiServerError, RunnerFailed
from genai_server.messages.engine_protocol import Accepted, Failed, Finished, Refused
from genai_server.messages.frames import ErrorInfo
from genai_server.messages.generation_request import FinishReason

log = logging.getLogger(__name__)


class RequestTable:
    """All sequences in the engine, in order of arrival, with the operations that accept, refuse and end them. The
    engine's loop creates it; only the loop's thread uses it.

    A sequence is found by the number of its connection and its key, the number by which the API process names it. The
    first call of `finish`, `fail` or `drop` ends a sequence: it frees the sequence's memory and takes it out of the
    `scheduler`. Later calls do nothing. Messages for API processes go to `outbox`.
    """

    def __init__(self, scheduler: Scheduler, runners: RunnerPair, outbox: Outbox) -> None:
        self._scheduler = scheduler
        self._runners = runners
        self._outbox = outbox
        self._sequences: dict[tuple[int, int], Sequence] = {}
        self.num_terminated = 0  # sequences ended by the runtime option terminate_session
        self.num_failed = 0  # sequences that a runner has failed since its last complete pass
        self._num_changes = 0  # of the sequences and their states up to the admission, which the scheduler makes
        self._sent_state: tuple[object, ...] = ()  # what the load ended last followed from

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences.values())

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return self._sequences.get(sequence.origin) is sequence

    @property
    def accepted(self) -> list[Sequence]:
        """The sequences that run or wait to run. Sequences whose grammar or inputs are still being prepared are left
        out, because they may still be refused.
        """
        return [sequence for sequence in self if sequence.state is not SequenceState.PREPARING]

    @property
    def next_deadline(self) -> float:
        """Earliest deadline of all sequences, as a time of the sequences' clock in seconds; infinite if there are no
        sequences.
        """
        return min((sequence.deadline for sequence in self), default=math.inf)

    def find(self, connection: int, key: int) -> Sequence | None:
        """Return the sequence with this connection number and key; None if there is none, for example because it has
        ended.
        """
        return self._sequences.get((connection, key))

    def named(self, name: str, *, is_unique: bool = False, tenant: str | None = None) -> list[Sequence]:
        """Return the sequences of the request whose unique internal id is `name`. If there is none, return those of all
        requests to which their clients gave the id `name`, unless `is_unique` is set.

        With a `tenant`, only requests of this tenant (API key) count; with None, those of all tenants.
        """
        present = [sequence for sequence in self if tenant in (None, sequence.tenant)]
        by_own_id = [sequence for sequence in present if sequence.request.own_id == name]
        return by_own_id or [sequence for sequence in present if sequence.request.request_id == name and not is_unique]

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence to the table and to the scheduler's queue. No message is sent yet. Raises QueueFull if the
        queue has no room for it.
        """
        self._scheduler.add(sequence)
        self._sequences[sequence.origin] = sequence
        self._num_changes += 1

    def accept(self, sequence: Sequence) -> None:
        """Let a sequence run when its turn comes, and tell its client that the request is accepted. The client then
        receives exactly one message about the end, unless the sequence is dropped.
        """
        sequence.state = SequenceState.WAITING
        self._num_changes += 1
        connection, key = sequence.origin
        self._outbox.send(connection, Accepted(key))

    def refuse(self, connection: int, key: int, error: GenaiServerError) -> None:
        """Tell a client that its request is refused because of `error`. `connection` and `key` identify the request,
        which must not be in the table.
        """
        self._outbox.send(connection, Refused(key, ErrorInfo.from_error(error)))

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence without an error, and send its client `reason` and the final figures, such as times and
        numbers of tokens. Does nothing if the sequence has ended before.
        """
        _, key = sequence.origin
        finished = Finished(
            key,
            reason,
            sequence.phases(),
            sequence.num_cached,
            sequence.profile.num_tokens,
            sequence.num_drafted,
            sequence.num_accepted,
            [] if sequence.audio is None else list(sequence.audio.token_times),
        )
        if self._end(sequence, finished):
            self.num_terminated += reason is FinishReason.TERMINATED
            if not reason.is_interruption:
                self._scheduler.answered(sequence)

    def finish_late(self, now: float) -> None:
        """End all sequences whose deadline has passed at the time `now`, with the finish reason "timeout"."""
        for sequence in [sequence for sequence in self if sequence.deadline <= now]:
            self.finish(sequence, FinishReason.TIMEOUT)

    def fail(self, sequences: Iterable[Sequence], error: GenaiServerError) -> None:
        """End sequences with `error`, which their clients receive. Does nothing for sequences that have ended
        before.
        """
        for sequence in list(sequences):
            _, key = sequence.origin
            if self._end(sequence, Failed(key, ErrorInfo.from_error(error))):
                self.num_failed += isinstance(error, RunnerFailed)
                log.error("request %s failed: %s", sequence.request.request_id, error)

    @contextmanager
    def failing(self, sequences: list[Sequence]) -> Iterator[None]:
        """Return a context manager that catches an exception within it, and calls `failed` with the given sequences and
        the exception.
        """
        try:
            yield
        except Exception as error:
            self.failed(sequences, error)

    def failed(self, sequences: list[Sequence], error: Exception) -> None:
        """End those of `sequences` to which the exception `error` applies. Must be called in an `except` block, because
        a traceback may be logged.

        `Interrupted` ends none, `Terminated` ends the first one with the finish reason "terminated", and any other
        exception ends all with an error.
        """
        match error:
            case Interrupted():
                pass  # the cause is in the inbox; sequences which remain have the pass again
            case Terminated():
                self.finish(sequences[0], FinishReason.TERMINATED)
            case GenaiServerError():
                self.fail(sequences, error)
            case _:
                log.exception("requests %s met an internal error", [s.request.request_id for s in sequences])
                self.fail(sequences, RunnerFailed("internal error; see the server log"))

    def abandon(self, connection: int, key: int, *, answered: bool) -> None:
        """End a sequence early because its client asks for that. `connection` and `key` identify it; does nothing if
        there is no such sequence.

        With `answered`, the client still receives the message about the end; otherwise it receives nothing.
        """
        sequence = self.find(connection, key)
        if sequence is not None and answered:
            self.finish(sequence, FinishReason.STOP)
        elif sequence is not None:
            self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """End a sequence without a message to its client. Does nothing if the sequence has ended before."""
        self._end(sequence)

    def drop_all(self, connection: int) -> None:
        """End all sequences of the connection with the number `connection`, which is closed, without messages."""
        for sequence in [sequence for sequence in self if sequence.origin[0] == connection]:
            self.drop(sequence)

    def send_load(self, *, terminated: bool) -> None:
        """Send all API processes a report of the engine's load (the numbers of its requests and its free capacity) if
        it has changed since the last call. `terminated` says whether an operator has made the engine refuse requests.
        """
        running = self._scheduler.running
        in_background = sum(sequence.low_priority for sequence in running)
        state = self._num_changes, self._outbox.num_connected, len(running), in_background, terminated
        if state != self._sent_state:
            self._sent_state = state
            self._outbox.send_load(self._scheduler, self.accepted, terminated=terminated)

    def _end(self, sequence: Sequence, ended: Finished | Failed | None = None) -> bool:
        """Remove a sequence from the table, from the scheduler and from memory. `ended` is the message for its client;
        None for no message. Returns whether the sequence was in the table; otherwise nothing is done, because it has
        ended before.

        The message is queued before memory is freed, so that an error while freeing cannot lose it.
        """
        if sequence not in self:
            return False
        del self._sequences[sequence.origin]
        self._num_changes += 1
        if ended is not None:
            if sequence.state is SequenceState.PREPARING:
                self.accept(sequence)
            self._outbox.send(sequence.origin[0], ended)
        self._scheduler.remove(sequence)
        sequence.state = SequenceState.ENDED
        self._runners.close(sequence)
        return True
