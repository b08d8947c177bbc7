"""What may interrupt a pass: the end of the only sequence of one that reads a prompt, calls of operators, and other
requests one of low priority; and only while it runs.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from genai_server.engine.loop import Interrupts
from genai_server.engine.runners.base import Interrupted
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk, Step
from genai_server.engine.sequence import Sequence
from genai_server.messages.admin import CancelRequest, ListRequests, ResetPrefixCache, SetRuntimeOption
from genai_server.messages.engine_protocol import Cancel, Stop, Submit
from genai_server.messages.generation_request import GenerationRequest

CONNECTION, KEY = 3, 7
FAR = 1000.0


def sequence(key: int = KEY, *, decoding: bool = False, low_priority: bool = False) -> Sequence:
    request = GenerationRequest("named", [1, 2, 3], 10, 100, unique_id="own", low_priority=low_priority)
    found = Sequence(key, (CONNECTION, key), request, lambda: 0.0)
    if decoding:
        found.num_read = 3
        found.append(5)
    return found


class Runner:
    """Calls a function for each interrupt."""

    def __init__(self, interrupted: Callable[[], object] = lambda: None) -> None:
        self._interrupted = interrupted
        self.num_lapsed = 0

    def interrupt(self) -> None:
        self._interrupted()

    def cancel_interrupt(self) -> None:
        self.num_lapsed += 1


def made(interrupted: Callable[[], object] = lambda: None) -> Interrupts:
    """With an empty inbox."""
    return Interrupts(Runner(interrupted), lambda: False)


def asked(message: Any, step: Step, connection: int = CONNECTION) -> int:
    """The number of interrupts caused by a message."""
    ended: list[int] = []
    interrupts = made(lambda: ended.append(1))
    with interrupts.within(step, FAR):
        interrupts.ask(connection, message)
    return len(ended)


READING = Step([ScheduledChunk.next(sequence(), 3)])


@pytest.mark.parametrize(
    ("connection", "message", "times"),
    [
        (CONNECTION, Cancel(KEY), 1),
        (CONNECTION, Cancel(KEY + 1), 0),
        (CONNECTION + 1, Cancel(KEY), 0),
        (CONNECTION, Stop(KEY), 0),
        (CONNECTION + 1, CancelRequest(1, "own"), 1),
        (CONNECTION + 1, CancelRequest(1, "named"), 1),
        (CONNECTION + 1, CancelRequest(1, "another"), 1),
        (CONNECTION + 1, SetRuntimeOption(1, "terminate_session", "1"), 1),
        (CONNECTION + 1, SetRuntimeOption(1, "enable_profiling", "1"), 1),
        (CONNECTION + 1, ListRequests(1, "another"), 1),
        (CONNECTION + 1, ListRequests(1), 0),
        (CONNECTION + 1, ResetPrefixCache(1), 0),
    ],
)
def test_message_interrupts_the_pass_of_its_sequence_and_an_operator_any(
    connection: int, message: Any, times: int
) -> None:
    assert asked(message, READING, connection) == times


@pytest.mark.parametrize(
    ("message", "times"),
    [
        (Cancel(KEY), 1),
        (CancelRequest(1, "own"), 1),
        (CancelRequest(1, "named"), 1),
        (SetRuntimeOption(1, "terminate_session", "1"), 1),
        (SetRuntimeOption(1, "terminate_session", "1", "named"), 1),
        (SetRuntimeOption(1, "terminate_session", "1", "another"), 0),
        (SetRuntimeOption(1, "enable_profiling", "1", "own"), 0),
        (CancelRequest(1, "another"), 0),
        (ListRequests(1, "own"), 0),
    ],
)
def test_a_chunk_that_was_interrupted_is_only_interrupted_again_by_its_end(message: Any, times: int) -> None:
    step = Step([ScheduledChunk.next(sequence(), 3)])
    interrupts = made()
    with pytest.raises(Interrupted), interrupts.within(step, FAR):
        raise Interrupted
    assert asked(message, step) == times  # which reads the chunk, so the next one may be interrupted by any
    assert asked(message, step) == 1


def test_each_sequence_is_spared_by_itself() -> None:
    steps = [Step([ScheduledChunk.next(sequence(key), 3)]) for key in (1, 2)]
    with pytest.raises(Interrupted), made().within(steps[0], FAR):
        raise Interrupted
    assert [asked(CancelRequest(1, "another"), step) for step in reversed(steps)] == [1, 0]


def test_a_pass_that_may_be_interrupted_does_not_begin_while_messages_wait() -> None:
    interrupts = Interrupts(Runner(), lambda: True)
    passes = {"chunk": READING, "background": Step([ScheduledChunk.next(sequence(decoding=True, low_priority=True))])}
    begun = []
    for name, step in passes.items():
        with pytest.raises(Interrupted), interrupts.within(step, FAR):
            begun.append(name)
    assert begun == []
    with interrupts.within(Step([ScheduledChunk.next(sequence(decoding=True))]), FAR):
        begun.append("another")
    assert begun == ["another"]
    assert not READING.sequences[0].was_interrupted


def test_a_pass_which_decodes_is_not_ended() -> None:
    decoding = sequence(decoding=True)
    assert asked(Cancel(KEY), Step([ScheduledChunk.next(decoding)])) == 0
    assert asked(Cancel(KEY), Step([ScheduledChunk.next(decoding), ScheduledChunk.next(sequence(KEY + 1), 3)])) == 0


def _submitted(*, low_priority: bool = False) -> Submit:
    return Submit(9, GenerationRequest("new", [1], 10, 100, low_priority=low_priority))


@pytest.mark.parametrize(
    ("backgrounds", "times"),
    [([True], 1), ([True, True], 1), ([True, False], 0), ([False], 0)],
    ids=["one", "several", "beside another", "another"],
)
def test_another_request_interrupts_passes_of_the_background(backgrounds: list[bool], times: int) -> None:
    sequences = [
        sequence(number, decoding=number == 0, low_priority=low_priority)
        for number, low_priority in enumerate(backgrounds)
    ]
    step = Step([ScheduledChunk.next(each) for each in sequences])
    assert asked(_submitted(), step) == times
    assert asked(_submitted(low_priority=True), step) == 0
    assert asked(Cancel(0), step) == 0


def test_another_request_does_not_interrupt_a_prompt() -> None:
    assert asked(_submitted(), READING) == 0


def test_what_came_too_late_for_a_pass_lapses_with_it() -> None:
    runner = Runner()
    interrupts = Interrupts(runner, lambda: False)
    with interrupts.within(READING, FAR):
        assert runner.num_lapsed == 0
    assert runner.num_lapsed == 1


def test_outside_of_a_pass_nothing_is_ended() -> None:
    ended: list[int] = []
    interrupts = made(lambda: ended.append(1))
    interrupts.ask(CONNECTION, Cancel(KEY))
    with interrupts.within(READING, FAR):
        pass
    interrupts.ask(CONNECTION, Cancel(KEY))
    assert ended == []


def test_a_deadline_ends_the_pass() -> None:
    ended = threading.Event()
    with made(ended.set).within(READING, 0.01):
        assert ended.wait(90)


def test_a_late_timer_does_not_end_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[Any] = []

    class Timer:
        daemon = False

        def __init__(self, seconds: float, function: Any, arguments: list[Any]) -> None:
            timers.append(lambda: function(*arguments))

        def start(self) -> None:
            """Started by hand."""

        cancel = start

    monkeypatch.setattr(threading, "Timer", Timer)
    ended: list[int] = []
    interrupts = made(lambda: ended.append(1))
    with interrupts.within(READING, 1.0):
        pass
    with interrupts.within(Step([ScheduledChunk.next(sequence(KEY + 1), 3)]), 1.0):
        timers[0]()
        assert ended == []
        timers[1]()
    assert ended == [1]
