"""How sequences end that nobody lets run to their end: at their deadlines, and because their reader has gone."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from genai_server.engine.ipc.mailbox import Disconnected
from genai_server.engine.runners.base import Interrupted
from genai_server.engine.sequence import Sequence
from genai_server.errors import RunnerFailed
from genai_server.generation import FinishReason
from genai_server.messages.protocol import Accepted, Finished, Refused, Tokens
from tests.engine.test_admission import nothing_compiles, step_until
from tests.engine.test_loop import API, Bench
from tests.engine.test_sequence import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def bench(tmp_path: Path, clock: HandClock) -> Bench:
    return Bench(tmp_path, max_running=1, max_waiting=3, clock=clock)


def test_at_its_deadline_an_answer_ends_as_it_is(bench: Bench, clock: HandClock) -> None:
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


def test_a_prompt_that_is_read_and_one_that_waits_end_without_a_token(bench: Bench, clock: HandClock) -> None:
    bench.submit(1, " " * 80 + "say x", timeout=3.0)
    bench.submit(2, "say y", timeout=1.0)
    bench.submit(3, "say z")
    bench.steps(2)
    clock.wait(1.0)
    bench.steps(1)
    assert [type(message) for message in bench.of(2)] == [Accepted, Finished]
    assert bench.reason(2) == FinishReason.TIMEOUT
    (end,) = bench.ends(2)
    assert isinstance(end, Finished)
    assert end.phases.queue == pytest.approx(1.0)
    clock.wait(2.0)
    bench.run()
    assert (bench.reason(1), bench.text(1)) == (FinishReason.TIMEOUT, "")
    assert bench.text(3) == "z"


def test_while_its_grammar_is_compiled_a_request_ends_at_its_deadline_though_nothing_arrives(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_running=1, max_waiting=0, clock=time.perf_counter)
    with nothing_compiles(bench):
        bench.submit(1, "say a", grammar='start: "a"', timeout=0.05)
        while not bench.ends(1):
            bench.steps(1)  # blocks until the deadline, for nothing runs
        assert [type(message) for message in bench.of(1)] == [Accepted, Finished]
        assert bench.reason(1) == FinishReason.TIMEOUT
        bench.submit(2, "say b")  # which has the place
        bench.run()
    assert bench.text(2) == "b"


def test_what_comes_of_the_grammar_after_the_deadline_is_nobodys(bench: Bench, clock: HandClock) -> None:
    with nothing_compiles(bench):
        bench.submit(1, "say a", grammar='start: "a"', timeout=1.0)
        bench.submit(2, "count 3")
        bench.steps(1)
        clock.wait(1.0)
        bench.steps(1)
    step_until(bench, lambda: bool(bench.loop._admission._guidance._kept))
    assert len(bench.ends(1)) == 1
    assert bench.text(1) == ""


def test_time_that_passed_before_counts_and_may_have_been_all(bench: Bench) -> None:
    bench.submit(1, "say a", timeout=0.0)
    bench.steps(1)
    assert bench.reason(1) == FinishReason.TIMEOUT
    assert bench.scheduler.is_idle


def test_a_prompts_own_deadline_interrupts_its_pass_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, clock=time.perf_counter)
    interrupted = threading.Event()
    monkeypatch.setattr(bench.loop.interrupts, "_interrupt", interrupted.set)
    prefill = bench.runner.prefill
    waited = []

    def slow(sequence: int, tokens: Any, **how: Any) -> Any:
        if sequence == 0:
            waited.append(interrupted.wait(10))
            raise Interrupted
        return prefill(sequence, tokens, **how)

    monkeypatch.setattr(bench.runner, "prefill", slow)
    bench.submit(1, "say a", timeout=0.05)
    bench.submit(2, "say b", timeout=9.0)
    bench.run()
    assert waited == [True]
    assert bench.reason(1) == FinishReason.TIMEOUT
    assert (bench.text(2), bench.reason(2)) == ("b", FinishReason.STOP)


def test_whose_reader_has_gone_has_no_deadline_any_more(bench: Bench, clock: HandClock) -> None:
    bench.submit(1, "count 50", timeout=1.0)
    bench.submit(2, "count 50", timeout=1.0)
    bench.steps(3)
    bench.inbox.put((API, Disconnected()))
    bench.steps(1)
    clock.wait(2.0)
    bench.sent.clear()
    assert bench.scheduler.is_idle
    bench.submit(3, "say c")
    bench.run()
    assert {type(message) for _, message in bench.sent} == {Accepted, Tokens, Finished}


def test_a_second_end_is_nothing(bench: Bench) -> None:
    bench.submit(1, "count 50")
    bench.submit(2, "say b")
    bench.steps(3)
    requests = bench.loop._requests
    sequence = requests.find(API, 1)
    assert sequence is not None
    requests.finish(sequence, FinishReason.TERMINATED)
    requests.finish(sequence, FinishReason.TERMINATED)
    requests.fail([sequence], RunnerFailed("too late"))
    requests.drop(sequence)
    bench.run()
    assert (len(bench.ends(1)), bench.reason(1), requests.num_terminated) == (1, FinishReason.TERMINATED, 1)
    assert bench.text(2) == "b"


def test_an_error_after_the_end_is_harmless(bench: Bench) -> None:
    """What fails while the last token of a sequence is told concerns a sequence that has ended."""

    def broken() -> None:
        raise ZeroDivisionError

    bench.submit(1, "count 50")
    bench.submit(2, "say b")
    bench.steps(3)
    sequence = bench.loop._requests.find(API, 1)
    assert sequence is not None
    with bench.loop._failing([sequence]):
        bench.loop._requests.finish(sequence, FinishReason.LENGTH)
        broken()
    bench.run()
    assert bench.reason(1) == FinishReason.LENGTH
    assert bench.text(2) == "b"


def test_an_end_is_told_though_what_the_sequence_held_cannot_be_freed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(sequence: Sequence) -> None:
        raise ZeroDivisionError

    bench.submit(1, "say a")
    bench.steps(1)
    monkeypatch.setattr(bench.loop._runners, "close", broken)
    bench.run()
    assert bench.reason(1) == FinishReason.STOP
    assert [type(message) for message in bench.of(1)] == [Accepted, Tokens, Finished]


def test_a_refusal_for_tokens_tells_the_limit_and_when_to_come_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_running=1, max_waiting_tokens=20)
    bench.submit(1, "count 9")
    bench.submit(2, "say a")
    bench.submit(3, "say " + "b" * 20)
    bench.run()
    (refused,) = bench.of(3)
    assert isinstance(refused, Refused)
    assert refused.error.code == "queue_full"
    assert "GENAI_MAX_QUEUE_TOKENS lets 20 wait" in refused.error.message
    assert refused.error.retry_after is not None and refused.error.retry_after >= 1
    assert bench.text(2) == "a"


def test_how_long_answers_become_is_learned_from_those_that_nobody_has_cut(bench: Bench, clock: HandClock) -> None:
    bench.submit(1, "say abcdefgh")
    bench.submit(2, "count 50", timeout=1.0)
    bench.steps(14)
    assert bench.text(2)
    clock.wait(1.0)
    bench.run()
    assert bench.scheduler._step_times.tokens_left(0) == 8
