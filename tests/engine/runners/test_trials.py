"""Trials at the start of a batched runner, with passes whose times are known."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from genai_server.engine.runners.trials import MAX_TIMED, Pass, try_int8
from genai_server.engine.scores import Logits
from tests.hand_clock import HandClock

VOCABULARY = 50
LIMIT = 1.2


def timed_pass(clock: HandClock, seconds: Callable[[int], float], error: float = 0.0) -> Pass:
    """A pass that takes a time that depends on its number of tokens; its logits have an error."""

    def run(ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> Logits:
        assert lengths.tolist() == [ids.shape[1]]
        clock.wait(seconds(ids.shape[1]))
        logits = np.linspace(-1, 1, VOCABULARY, dtype=np.float32) + np.zeros((*ids.shape, 1), np.float32)
        return logits * np.float32(1 + error)

    return run


def test_times_of_passes_are_those_of_the_weights_in_use() -> None:
    clock = HandClock()
    passes = timed_pass(clock, lambda n: 0.02 * n), timed_pass(clock, lambda n: 0.1 + 0.01 * n, 0.01)
    found = try_int8(*passes, VOCABULARY, LIMIT, clock)
    assert found.first == 16
    assert found.seconds == pytest.approx({1: 0.02, 4: 0.08, 8: 0.16, 15: 0.3, 16: 0.26, 64: 0.74})
    slower = timed_pass(clock, lambda n: 0.03 * n)
    assert try_int8(passes[0], slower, VOCABULARY, LIMIT, clock).seconds[64] == pytest.approx(1.28)


def min_tokens(own: Callable[[int], float], int8: Callable[[int], float], error: float = 0.01) -> int | None:
    clock = HandClock()
    passes = timed_pass(clock, own), timed_pass(clock, int8, error)
    return try_int8(*passes, VOCABULARY, LIMIT, clock).first


@pytest.mark.parametrize(("fixed", "expected"), [(0.0, 4), (0.05, 8), (0.1, 16), (0.3, 64)])
def test_int8_is_used_from_the_first_faster_size(fixed: float, expected: int) -> None:
    assert min_tokens(lambda n: 0.02 * n, lambda n: fixed + 0.01 * n) == expected


def test_int8_must_be_faster_by_the_limit() -> None:
    assert min_tokens(lambda n: 0.01 * n * (LIMIT - 0.01), lambda n: 0.01 * n) is None
    assert min_tokens(lambda n: 0.01 * n * (LIMIT + 0.01), lambda n: 0.01 * n) == 4


def test_int8_is_left_out_if_logits_differ_too_much() -> None:
    assert min_tokens(lambda n: 0.02 * n, lambda n: 0.01 * n, error=0.2) is None


@pytest.mark.parametrize(("gain", "is_used"), [(1.05, False), (1.15, False), (1.26, True), (1.4, True)])
def test_other_programs_do_not_decide(gain: float, is_used: bool) -> None:
    """Two of three passes take up to three times as long."""
    chance = random.Random(gain)

    def noisy(seconds: float) -> float:
        return seconds * (1 + max(0.0, chance.uniform(-1, 2)))

    wrong = 0
    for _ in range(300):
        found = min_tokens(lambda n: noisy(1e-4 * n * gain), lambda n: noisy(1e-4 * n))
        wrong += (found is not None) != is_used
    assert wrong < 30


def test_passes_are_repeated_until_their_best_times_agree() -> None:
    """The first run is slower, as it is where weights are read from a file."""
    seconds = {"own": [5.0, 1.0, 2.0, 1.01], "int8": [4.0, 0.5, 0.52, 0.6]}
    clock = HandClock()

    def pass_of(name: str) -> Pass:
        return timed_pass(clock, lambda n: 0.01 * seconds[name].pop(0) if n == MAX_TIMED else 0.001)

    assert try_int8(pass_of("own"), pass_of("int8"), VOCABULARY, LIMIT, clock).first == MAX_TIMED
    assert seconds == {"own": [], "int8": []}


def test_a_trial_of_slow_passes_ends_after_two_runs() -> None:
    seconds = [2.0, 1.0]
    assert min_tokens(lambda n: 8 * seconds.pop(0) if n == MAX_TIMED else 1, lambda _: 1) == MAX_TIMED
    assert not seconds
