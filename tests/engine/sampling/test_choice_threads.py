"""Slow grammars: another thread chooses their tokens while the loop runs passes for other sequences."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from genai_server.engine.api_connections import Disconnected
from genai_server.engine.sampling.continuation import slow_grammars
from genai_server.engine.sampling.grammar import STEP_SECONDS
from genai_server.engine.sequence import Sequence
from genai_server.messages.engine_protocol import Cancel
from genai_server.messages.generation_request import FinishReason, Sampling
from tests.engine.bench import Bench
from tests.stepped_loop import API

LETTERS = "start: /[a-z]*/"


def slow_bench(folder: Path, seconds: float = STEP_SECONDS + 0.001) -> Bench:
    """A bench on which each operation of a grammar takes this processor time in seconds."""
    ticks = count()
    return Bench(folder, processor_time=lambda: next(ticks) * seconds)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return slow_bench(tmp_path)


@contextmanager
def nothing_chosen(bench: Bench) -> Iterator[None]:
    """No other thread chooses a token before the block ends."""
    gate = threading.Event()
    bench.loop._choice_threads._threads.submit(gate.wait)
    try:
        yield
    finally:
        gate.set()


def start_slow(bench: Bench, key: int, **fields: Any) -> Sequence:
    """Submit a request whose second token is to be chosen by another thread; returns its sequence at that point."""
    bench.submit(key, "say abcdef", grammar=LETTERS, **fields)
    bench.step_until(lambda: any(sequence.is_choosing for sequence in bench.scheduler.running))
    found = bench.loop._requests.find(API, key)
    assert found is not None
    return found


def test_other_streams_end_while_a_slow_token_is_chosen(bench: Bench) -> None:
    with nothing_chosen(bench):
        start_slow(bench, 1)
        bench.submit(2, "count 100")
        bench.run(2)
        assert bench.text(2).endswith(" 100")
        assert (bench.text(1), bench.ends(1)) == ("a", [])
    bench.run(1)
    assert (bench.text(1), bench.reason(1)) == ("abcdef", FinishReason.STOP)


def test_the_loop_waits_where_all_tokens_are_being_chosen(bench: Bench) -> None:
    with nothing_chosen(bench):
        start_slow(bench, 1)
        bench.steps(1)
        assert bench.loop._is_stalled
        bench.submit(2, "say x")
        bench.run(2)  # a message wakes the loop
    bench.run(1)


@pytest.mark.parametrize("message", [Cancel(1), Disconnected()])
def test_a_cancelled_sequence_ends_while_its_token_is_chosen(bench: Bench, message: Cancel | Disconnected) -> None:
    with nothing_chosen(bench):
        chosen = start_slow(bench, 1)
        bench.put(message)
        bench.steps(1)
        assert bench.scheduler.is_idle
    bench.step_until(lambda: not chosen.is_choosing)
    assert (bench.text(1), bench.ends(1)) == ("a", [])


def test_a_deadline_ends_a_sequence_whose_token_is_chosen(bench: Bench) -> None:
    with nothing_chosen(bench):
        start_slow(bench, 1).deadline = -math.inf
        bench.steps(1)
        assert bench.reason(1) == FinishReason.TIMEOUT


def test_a_grammar_over_its_time_fails_its_answer_alone(tmp_path: Path) -> None:
    bench = slow_bench(tmp_path, 0.1)
    bench.submit(1, "say " + "x" * 100, grammar=LETTERS)
    bench.submit(2, "count 100")
    bench.run(1, 2)
    error = bench.failure(1)
    assert error.code == "grammar_failed"
    assert "takes too long to follow" in error.message
    assert bench.text(2).endswith(" 100")


def test_an_answer_drops_a_guide_over_its_time(tmp_path: Path) -> None:
    bench = slow_bench(tmp_path, 0.1)
    bench.submit(1, "say " + "x" * 100, grammar=LETTERS, needs_grammar=False)
    bench.run(1)
    assert (bench.text(1), bench.reason(1)) == ("x" * 100, FinishReason.STOP)


def test_tokens_are_the_same_in_the_loop_and_in_a_thread(tmp_path: Path) -> None:
    texts = set()
    for seconds in (0.0, STEP_SECONDS + 0.001):
        bench = slow_bench(tmp_path, seconds)
        sampling = Sampling(temperature=2.0, seed=7)
        for key in (1, 2, 3):
            bench.submit(key, "say abcdefabcdef", grammar="start: /[a-f]{12}/", sampling=sampling)
        bench.run(1, 2, 3)
        texts |= {bench.text(key) for key in (1, 2, 3)}
    assert len(texts) == 1


def test_the_cheapest_grammars_stay_in_the_loop(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_running=4)
    for key, grammar in enumerate([LETTERS, None, LETTERS, LETTERS]):
        bench.submit(key, f"say {'a' * (200 + key)}", grammar=grammar)
    bench.step_until(lambda: len(bench.scheduler.running) == 4)
    costly, _, cheap, other = sequences = sorted(bench.scheduler.running, key=lambda sequence: sequence.origin)
    for sequence, cost in ((costly, 0.8), (cheap, 0.4), (other, 0.5)):
        assert sequence.guide is not None
        sequence.guide.cost = cost * STEP_SECONDS
    assert slow_grammars(sequences) == {costly}
    assert slow_grammars([costly]) == set()
    assert costly.guide is not None
    costly.guide.cost = 1.1 * STEP_SECONDS
    assert slow_grammars([costly]) == {costly}
