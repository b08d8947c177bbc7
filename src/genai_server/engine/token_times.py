"""Finds when the tokens of a transcript were spoken, by a decoder's attention to the audio.

The method is that of openai/whisper (timing.py): some cross-attention heads follow the speech. Of all paths through
their weights that only go forward in time, the one with the largest sum says for each token where in the audio it is
(dynamic time warping).
"""

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]
# Each weight becomes the median of this number of frames.
_MEDIAN = 7
_TINY = 1e-6


def token_times(scores: Weights, num_frames: int, seconds_per_frame: float) -> list[float]:
    """Times in seconds at which tokens begin.

    `scores` [heads, tokens, frames] are attention scores before softmax, for each token that was read. The first token
    stands before the text, and the weights of a token are those with which the next one was chosen. Only the first
    `num_frames` have audio.
    """
    heads = (_followed(head) for head in scores[:, :, : max(1, num_frames)])
    found = sum(heads, np.zeros(1, np.float32))
    tokens, frames = _path(-found)
    begins = np.flatnonzero(np.diff(tokens, prepend=-1))
    times: list[float] = (frames[begins] * seconds_per_frame).tolist()
    return times


def _followed(scores: Weights) -> Weights:
    """How much more than other tokens each token attends to each frame, [tokens, frames], by the scores of one head."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return _smooth((weights - weights.mean(axis=0)) / (weights.std(axis=0) + _TINY))


def _smooth(weights: Weights) -> Weights:
    """Median of each weight over neighboring frames, with the ends reflected."""
    half = _MEDIAN // 2
    num_frames = weights.shape[-1]
    if num_frames <= half:
        return weights
    padded = np.pad(weights, ((0, 0), (half, half)), mode="reflect")
    neighbors = [padded[:, first : first + num_frames] for first in range(_MEDIAN)]
    # Sorted by exchanging neighbors: numpy's median takes several times as long for so few.
    for turn in range(_MEDIAN):
        for low in range(turn % 2, _MEDIAN - 1, 2):
            pair = neighbors[low], neighbors[low + 1]
            neighbors[low : low + 2] = np.minimum(*pair), np.maximum(*pair)
    return neighbors[half]


def _path(costs: Weights) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of the cheapest path from the first to the last cell, with steps to the right, down, or both."""
    num_rows, num_columns = costs.shape
    total = np.empty((num_rows, num_columns))
    total[0] = np.cumsum(costs[0], dtype=np.float64)
    for row in range(1, num_rows):
        above = total[row - 1]
        best = np.minimum(above, np.concatenate(([np.inf], above[:-1])))
        # From the left is cheaper where a sum along the row began lower: that needs no loop over the columns.
        along = np.cumsum(costs[row], dtype=np.float64)
        total[row] = np.minimum.accumulate(best - along + costs[row]) + along
    row, column = num_rows - 1, num_columns - 1
    cells = [(row, column)]
    while row or column:
        steps = [(row - 1, column - 1), (row - 1, column), (row, column - 1)]
        row, column = min((each for each in steps if min(each) >= 0), key=total.__getitem__)
        cells.append((row, column))
    rows, columns = np.array(cells[::-1]).T
    return rows, columns
