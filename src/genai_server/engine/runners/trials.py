"""Trials at the start of a batched runner: what this machine's kernels compute alike, and which weights are faster."""

import logging
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.runners.scores import Logits

log = logging.getLogger(__name__)
# Prompt length and number of rows of the trial of row groups.
TOKENS = 8
ROWS = 8
# Chunk sizes, in tokens, that 8-bit weights are timed with. Each runs twice: the first run reads the weights' file.
_TIMED_TOKENS = (4, 16, 64)
MAX_TIMED = max(_TIMED_TOKENS)
# The largest accepted difference between the logits of the longest chunk, as a share of their standard deviation.
# Rounding to 8 bits costs about 0.02; 4 bits have cost about 0.1.
_MAX_DIFFERENCE = 0.1


# Copies the first tokens of one slot to another.
Copy = Callable[[int, int, int], None]


class Pass(Protocol):
    """Runs a pass over the slots from 0 on."""

    def __call__(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> Logits:
        """Run `ids` [rows, new]; `lengths` [rows] are the rows' lengths after the pass. A row behind cached tokens can
        be run again from these.

        Returns the logits [rows, new, vocab_size].
        """
        ...


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


def min_int8_tokens(own: Pass, int8: Pass, vocab_size: int, min_gain: float) -> int | None:
    """The least tokens of a step that 8-bit weights make faster than the model's own.

    None if they are not `min_gain` times as fast, or if their logits differ too much. Slot 0 has MAX_TIMED tokens.
    """
    seconds = np.zeros((2, len(_TIMED_TOKENS)))
    logits = []
    for row, run in enumerate((own, int8)):
        for column, num_tokens in enumerate(_TIMED_TOKENS):
            ids = np.arange(1, num_tokens + 1, dtype=np.int64)[np.newaxis] % vocab_size
            for _ in range(2):
                started = time.perf_counter()
                found = run(ids, np.array([num_tokens]))
                seconds[row, column] = time.perf_counter() - started
        logits.append(found)
    gains = seconds[0] / seconds[1]
    difference = float(np.sqrt(np.square(logits[0] - logits[1]).mean()) / logits[0].std())
    figures = f"{gains[-1]:.2f} times as fast, logits differ by {difference:.3f} of their standard deviation"
    if gains[-1] < min_gain or not difference <= _MAX_DIFFERENCE:
        log.info("weights of 8 bits are not used: %s", figures)
        return None
    first = next(n for n, gain in zip(_TIMED_TOKENS, gains, strict=True) if gain > 1 or n == _TIMED_TOKENS[-1])
    log.info("weights of 8 bits are used from %d tokens a step on: %s", first, figures)
    return first
