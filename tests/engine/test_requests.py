"""Sequences that end early: at their deadlines, and because their client disconnected."""

import threading
import time
from collections import abc
from pathlib import Path
from unittest.mock import Mock

import pytest

from genai_server.engine.api_connections import Disconnected
from genai_server.engine.runners.base import Interrupted
from genai_server.engine.scheduling.scheduler_output import ScheduledChunk
from genai_server.errors import RunnerFailed
from genai_server.messages.engine_protocol import Accepted, Finished, Load, Tokens
from genai_server.messages.generation_request import FinishReason
from tests.engine.bench import Bench, nothing_compiles
from tests.hand_clock import HandClock
from tests.stepped_loop import API, OTHER_API


@pytest.fixture
def bench(tmp_path: Path, clock: HandClock) -> Bench:
    return Bench(tmp_path, max_running=1, max_waiting=3, clock=clock)


def test_answer_ends_unchanged_at_its_deadline(bench: Bench, clock: HandClock) -> None:
    bench.submit(1, "count 50", timeout=2.0)
    bench.steps(5)
    clock.wait(1.9)
    bench.steps(1)
    produced = bench.text(1)
    assert produced
    assert bench.ends(1) == []
    clock.wait(0.1)
    bench.steps(1)
    assert (bench.reason(1), bench.text(1)) == (FinishReason.TIMEOUT, produced)
    assert bench.scheduler.is_idle


def test_prompt_and_queued_request_time_out_without_a_token(bench: Bench, clock: HandClock) -> None:
    bench.submit(1, " " * 80 + "say x", timeout=3.0)
    bench.submit(2, "say y", timeout=1.0)
    bench.submit(3, "say z")
    bench.steps(2)
    clock.wait(1.0)
    bench.steps(1)
    assert bench.kinds(2) == [Accepted, Finished]
    assert bench.reason(2) == FinishReason.TIMEOUT
    assert bench.end(2).phases.queue == pytest.approx(1.0)
    clock.wait(2.0)
    bench.run()
    assert (bench.reason(1), bench.text(1)) == (FinishReason.TIMEOUT, "")
    assert bench.text(3) == "z"


def test_request_times_out_during_compilation_without_messages(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_running=1, max_waiting=0, clock=time.perf_counter)
    with nothing_compiles(bench):
        bench.submit(1, "say a", grammar='start: "a"', timeout=0.05)
        while not bench.ends(1):
            bench.steps(1)  # blocks until the deadline, because nothing runs
        assert bench.kinds(1) == [Accepted, Finished]
        assert bench.reason(1) == FinishReason.TIMEOUT
        assert bench.answer(2, "say b") == "b"  # it takes the place


def test_grammar_compiled_after_the_deadline_is_ignored(bench: Bench, clock: HandClock) -> None:
    with nothing_compiles(bench):
        bench.submit(1, "say a", grammar='start: "a"', timeout=1.0)
        bench.submit(2, "count 3")
        bench.steps(1)
        clock.wait(1.0)
        bench.steps(1)
    bench.step_until(lambda: bool(bench.loop._admission._guidance._kept))
    assert len(bench.ends(1)) == 1
    assert bench.text(1) == ""


def test_time_before_the_engine_counts_and_may_be_the_whole(bench: Bench) -> None:
    bench.submit(1, "say a", timeout=0.0)
    bench.steps(1)
    assert bench.reason(1) == FinishReason.TIMEOUT
    assert bench.scheduler.is_idle


def test_deadline_of_a_prompt_interrupts_only_its_own_pass(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, clock=clock)
    interrupted = threading.Event()
    monkeypatch.setattr(bench.runner, "interrupt", interrupted.set)
    waited = []

    def wait(chunks: abc.Sequence[ScheduledChunk]) -> None:
        if chunks[0].sequence.id == 0:
            waited.append(interrupted.wait(90))
            clock.wait(0.05)
            raise Interrupted

    bench.before_each_pass(wait)
    bench.submit(1, "say a", timeout=0.05)
    bench.submit(2, "say b", timeout=9.0)
    bench.run()
    assert waited == [True]
    assert bench.reason(1) == FinishReason.TIMEOUT
    assert (bench.text(2), bench.reason(2)) == ("b", FinishReason.STOP)


def test_disconnected_request_has_no_deadline(bench: Bench, clock: HandClock) -> None:
    for key in (1, 2):
        bench.submit(key, "count 50", timeout=1.0)
    bench.steps(3)
    bench.put(Disconnected())
    bench.steps(1)
    clock.wait(2.0)
    bench.sent.clear()
    assert bench.scheduler.is_idle
    bench.answer(3, "say c")
    assert {type(message) for _, message in bench.sent} == {Accepted, Tokens, Finished}


def test_second_end_has_no_effect(bench: Bench) -> None:
    bench.submit(1, "count 50")
    bench.submit(2, "say b")
    bench.steps(3)
    requests = bench.loop._requests
    sequence = requests.find(API, 1)
    assert sequence is not None
    with requests.failing([sequence]):
        requests.finish(sequence, FinishReason.TERMINATED)
        requests.finish(sequence, FinishReason.TERMINATED)
        requests.fail([sequence], RunnerFailed("too late"))
        requests.drop(sequence)
        int("an error while its last token is sent")
    bench.run()
    assert (len(bench.ends(1)), bench.reason(1), requests.num_terminated) == (1, FinishReason.TERMINATED, 1)
    assert bench.text(2) == "b"


def test_end_is_sent_though_closing_the_sequence_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.submit(1, "say a")
    bench.steps(1)
    monkeypatch.setattr(bench.loop._runners, "close", Mock(side_effect=ZeroDivisionError))
    bench.run()
    assert bench.reason(1) == FinishReason.STOP
    assert bench.kinds(1) == [Accepted, Tokens, Finished]


def test_expected_length_ignores_answers_that_were_cut(bench: Bench, clock: HandClock) -> None:
    bench.submit(1, "say abcdefgh")
    bench.submit(2, "count 50", timeout=1.0)
    bench.steps(14)
    assert bench.text(2)
    clock.wait(1.0)
    bench.run()
    assert bench.scheduler._step_times.tokens_left(0) == 8


def test_load_counts_the_background_separately(tmp_path: Path, clock: HandClock) -> None:
    bench = Bench(tmp_path, max_running=2, max_waiting=3, clock=clock)
    for key in (1, 2, 3):
        bench.submit(key, "count 30", low_priority=True)
    bench.steps(1)
    bench.submit(4, "count 30", OTHER_API)
    bench.steps(1)
    loads = [message for to, message in bench.sent if to == API and isinstance(message, Load)]
    counts = [(load.running, load.waiting, load.low_priority_running, load.low_priority_waiting) for load in loads]
    assert counts[-2:] == [(0, 0, 2, 1), (1, 0, 1, 2)]
    assert (loads[-1].present, loads[-1].others) == ({"": 1}, 1)
