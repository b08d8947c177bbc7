"""Ends the pass of a prompt whose sequence is cancelled or past its deadline. Such a pass has no other sequence."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.sequence import Sequence
from genai_server.messages.admin import CancelRequest, SetRuntimeOption
from genai_server.messages.protocol import Cancel, ToEngine

# Seconds. A deadline further away is assumed to be after the end of the current pass.
_LONGEST_PASS = 10.0


class Interrupts:
    """Knows which sequence's chunk is being read. `interrupt` ends the runner's pass."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._reading: Sequence | None = None
        # Held while a pass is interrupted, so that the next pass is not interrupted instead.
        self._lock = threading.Lock()

    @contextmanager
    def within(self, step: Step, seconds: float) -> Iterator[None]:
        """The pass of a step whose first deadline is `seconds` away. Passes that decode are never interrupted."""
        if len(step.reads) > 1 or step.decodes:
            yield
            return
        (sequence,) = step.sequences
        self._reading = sequence
        alarm = threading.Timer(seconds, self._end, [sequence])
        alarm.daemon = True
        if seconds <= _LONGEST_PASS:
            alarm.start()
        try:
            yield
        finally:
            alarm.cancel()
            with self._lock:
                self._reading = None

    def ask(self, connection: int, message: ToEngine) -> None:
        """End the pass if the message concerns its sequence. Any thread may call this."""
        reading = self._reading
        if reading is None:
            return
        match message:
            case Cancel(key):
                concerns = reading.origin == (connection, key)
            case CancelRequest(unique_id=unique_id):
                concerns = reading.request.own_id == unique_id
            case _:
                concerns = isinstance(message, SetRuntimeOption)
        if concerns:
            self._end(reading)

    def _end(self, sequence: Sequence) -> None:
        with self._lock:
            if self._reading is sequence:
                self._interrupt()
