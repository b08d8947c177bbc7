"""Interrupts forward passes that must not run to their end.

A pass that reads a part of one prompt is interrupted when its request is cancelled or reaches its deadline, or when an
operator's call about a request arrives. A pass of low-priority sequences is interrupted when another request arrives.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from genai_server.engine.profiling.runtime_options import TERMINATE
from genai_server.engine.runners.base import Interrupted
from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.sequence import Sequence
from genai_server.messages.admin import CancelRequest, ListRequests, SetRuntimeOption
from genai_server.messages.engine_protocol import Cancel, Submit, ToEngine

# Seconds. A deadline further away is assumed to be after the end of the current pass.
_LONGEST_PASS = 10.0
_UNINTERRUPTED = nullcontext()


class Interruptible(Protocol):
    """Those methods of a runner with which a pass is interrupted."""

    def interrupt(self) -> None:
        """Interrupt the pass that is in progress, or otherwise the next one. Any thread may call this."""
        ...

    def lapse(self) -> None:
        """Cancel an interrupt that came too late to interrupt its pass, so that it does not interrupt the next one."""
        ...


class Interrupts:
    """Decides for each arriving message whether it interrupts the forward pass in progress.

    A message that ends the pass's sequence always does. Other messages do not interrupt two passes of the same prompt
    in a row, because the prompt might otherwise never be read. `has_messages` returns whether messages wait for the
    engine's loop.
    """

    def __init__(self, runner: Interruptible, has_messages: Callable[[], bool]) -> None:
        self._runner = runner
        self._has_messages = has_messages
        self._step: Step | None = None
        # Held while a pass is interrupted, so that the next pass is not interrupted instead.
        self._lock = threading.Lock()

    def within(self, step: Step, seconds: float) -> AbstractContextManager[None]:
        """Context manager around the pass of a step, which may then be interrupted. `seconds` is the time until the
        earliest deadline of the step's sequences.

        A pass that decodes or has several sequences may be interrupted only if all of them have low priority. If
        messages wait for the loop already, a pass that may be interrupted does not begin: Interrupted is raised.
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
                self._runner.lapse()

    def ask(self, connection: int, message: ToEngine) -> None:
        """Interrupt the pass in progress if a message that has just arrived must not wait until its end.

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
    """Context manager around the pass of a step. If the pass reads a part of one prompt, the sequence's
    `was_interrupted` is set afterwards.
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
    """Whether a message from the connection with this number must interrupt the pass of a step."""
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
    """Whether a message from the connection with this number ends a sequence.

    Also true for a message with the name of the sequence's request, which ends no sequence if several requests have
    that name.
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
