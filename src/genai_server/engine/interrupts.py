"""Ends passes early: a prompt's own, once its sequence is cancelled or past its deadline, and those of the background,
once another request arrives.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.messages.admin import CancelRequest, SetRuntimeOption
from genai_server.messages.protocol import Cancel, Submit, ToEngine

# Seconds. A deadline further away is assumed to be after the end of the current pass.
_LONGEST_PASS = 10.0


class Interrupts:
    """Knows which pass runs, if it may be ended. `interrupt` ends the runner's pass."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        self._step: Step | None = None
        # Held while a pass is interrupted, so that the next pass is not interrupted instead.
        self._lock = threading.Lock()

    @contextmanager
    def within(self, step: Step, seconds: float) -> Iterator[None]:
        """The pass of a step whose first deadline is `seconds` away.

        Passes that decode, or that have several sequences, are interrupted only if all of these are of the background.
        """
        if not step.is_background and not step.is_chunk:
            yield
            return
        self._step = step
        alarm = threading.Timer(seconds, self._end, [step])
        alarm.daemon = True
        if step.is_chunk and seconds <= _LONGEST_PASS:
            alarm.start()
        try:
            yield
        finally:
            alarm.cancel()
            with self._lock:
                self._step = None

    def ask(self, connection: int, message: ToEngine) -> None:
        """End the pass if the message concerns its only sequence, or does not let the background run. Any thread may
        call this.
        """
        step = self._step
        if step is not None and _concerns(message, connection, step):
            self._end(step)

    def _end(self, step: Step) -> None:
        with self._lock:
            if self._step is step:
                self._interrupt()


def _concerns(message: ToEngine, connection: int, step: Step) -> bool:
    if isinstance(message, Submit):
        return step.is_background and not message.request.background
    sequence = step.sequences[0]
    match message:
        case Cancel(key):
            return step.is_chunk and sequence.origin == (connection, key)
        case CancelRequest(unique_id=unique_id):
            return step.is_chunk and sequence.request.own_id == unique_id
        case _:
            return step.is_chunk and isinstance(message, SetRuntimeOption)
