"""Trials at the start of a batched runner: what this machine's kernels compute alike, and which weights are faster."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.scores import Logits
from genai_server.timing import Clock

log = logging.getLogger(__name__)
# Prompt length and number of rows of the trial of row groups.
TOKENS = 8
ROWS = 8
# Chunk sizes, in tokens, that are timed, and the smallest one that may have 8-bit weights.
_TIMED_TOKENS = (1, 4, 8, 16, 64)
_MIN_INT8 = 4
MAX_TIMED = max(_TIMED_TOKENS)
# Both weights run all sizes in turn until the two best times of each for the longest chunk agree: other programs, and
# the first run, make a pass slower but never faster. A trial that takes longer ends after two runs.
_AGREEMENT, _MIN_RUNS, _MAX_SECONDS = 1.05, 2, 3.0
# How many times faster 8-bit weights must be at the size from which they are used.
_FASTER = 1.05
# The largest accepted difference between the logits of the longest chunk, as a share of their standard deviation.
# Rounding to 8 bits costs about 0.02; 4 bits have cost about 0.1.
_MAX_DIFFERENCE = 0.1

# Copies the first tokens of one slot to another.
Copy = Callable[[int, int, int], None]


# Runs ids [rows, new] over the slots from 0 on, of rows that have these lengths [rows] afterwards; returns the logits
# [rows, new, vocab_size]. A row behind cached tokens can be run again from these.
Pass = Callable[[NDArray[np.int64], NDArray[np.int64]], Logits]


def smallest_row_group(run: Pass, copy: Copy, vocab_size: int) -> int:
    """The smallest group of rows whose logits are bitwise equal whatever other groups are in the pass.

    There must be ROWS slots of TOKENS + 1 tokens.
    """
    prompt = np.arange(TOKENS, dtype=np.int64)[np.newaxis] % vocab_size
    run(prompt, np.array([TOKENS]))
    for row in range(1, ROWS):
        copy(0, row, TOKENS)
    following = np.arange(ROWS, dtype=np.int64)[:, np.newaxis] % vocab_size
    lengths = np.full(ROWS, TOKENS + 1)
    together = run(following, lengths)

    def is_whole(group: int) -> bool:
        passes = [rows for rows in (group, 3 * group) if rows < ROWS]
        return all(np.array_equal(run(following[:rows], lengths[:rows]), together[:rows]) for rows in passes)

    return next(group for group in (1, 2, 4, ROWS) if is_whole(group))


class Int8Trial(NamedTuple):
    """What a trial of 8-bit weights has found."""

    # The least tokens of a pass that they make faster than the model's own; None if they are not used.
    first: int | None = None
    # The seconds of passes with the weights that each has then, by their number of tokens in ascending order.
    seconds: dict[int, float] = {}


def try_int8(own: Pass, int8: Pass, vocab_size: int, min_gain: float, clock: Clock = time.perf_counter) -> Int8Trial:
    """Time passes with the model's own weights and with those of 8 bits.

    The latter are not used if they are not `min_gain` times as fast, or if their logits differ too much. Slot 0 has
    MAX_TIMED tokens.
    """
    passes, began = (own, int8), clock()
    # Those of each run [weights, chunks].
    seconds: list[NDArray[np.float64]] = []
    logits: list[Logits] = []
    while not _agree(seconds) and not (len(seconds) >= _MIN_RUNS and clock() - began > _MAX_SECONDS):
        taken = np.zeros((len(passes), len(_TIMED_TOKENS)))
        for column, num_tokens in enumerate(_TIMED_TOKENS):
            ids = np.arange(1, num_tokens + 1, dtype=np.int64)[np.newaxis] % vocab_size
            logits = []
            for row, run in enumerate(passes):
                started = clock()
                logits.append(run(ids, np.array([num_tokens])))
                taken[row, column] = clock() - started
        seconds.append(taken)
    best = np.min(seconds, axis=0)
    gains = best[0] / best[1]
    difference = float(np.sqrt(np.square(logits[0] - logits[1]).mean()) / logits[0].std())
    figures = f"{gains[-1]:.2f} times as fast, logits differ by {difference:.3f} of their standard deviation"
    if gains[-1] < min_gain or not difference <= _MAX_DIFFERENCE:
        log.info("weights of 8 bits are not used: %s", figures)
        return Int8Trial(None, dict(zip(_TIMED_TOKENS, best[0].tolist(), strict=True)))
    sizes = zip(_TIMED_TOKENS, gains, strict=True)
    first = next((n for n, gain in sizes if n >= _MIN_INT8 and gain > _FASTER), MAX_TIMED)
    log.info("weights of 8 bits are used from %d tokens a step on: %s", first, figures)
    last = first - 1  # with the model's own
    numbers = sorted({*_TIMED_TOKENS, last})
    return Int8Trial(first, {n: float(np.interp(n, _TIMED_TOKENS, best[int(n >= first)])) for n in numbers})


def _agree(seconds: list[NDArray[np.float64]]) -> bool:
    """Whether the two best times of each pass with the longest chunk agree."""
    if len(seconds) < _MIN_RUNS:
        return False
    best = np.sort(np.array(seconds)[:, :, -1], axis=0)
    return bool((best[1] <= _AGREEMENT * best[0]).all())
