"""Times of tokens from the weights of attention to a sound."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from genai_server.engine.token_times import _path, _smooth, token_times

FRAME = 0.02


def cheapest(costs: NDArray[np.float32]) -> float:
    """The cost of the cheapest path, cell by cell."""
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0
    for row, column in itertools.product(range(rows), range(columns)):
        before = min(total[row, column], total[row, column + 1], total[row + 1, column])
        total[row + 1, column + 1] = costs[row, column] + before
    return float(total[-1, -1])


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 20), (20, 3), (12, 40)])
def test_path_is_the_cheapest(shape: tuple[int, int]) -> None:
    costs = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    rows, columns = _path(costs)
    assert (rows[0], columns[0]) == (0, 0)
    assert (rows[-1], columns[-1]) == (shape[0] - 1, shape[1] - 1)
    steps = set(zip(np.diff(rows).tolist(), np.diff(columns).tolist(), strict=True))
    assert steps <= {(0, 1), (1, 0), (1, 1)}
    assert float(costs[rows, columns].astype(np.float64).sum()) == pytest.approx(cheapest(costs), abs=1e-4)


@pytest.mark.parametrize("num_frames", [4, 7, 40])
def test_weights_become_the_median_of_seven_frames(num_frames: int) -> None:
    weights = np.random.default_rng(num_frames).standard_normal((5, num_frames)).astype(np.float32)
    padded = np.pad(weights, ((0, 0), (3, 3)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 7, axis=-1)
    assert np.array_equal(_smooth(weights), np.median(windows, axis=-1))


def heads(spoken: list[tuple[int, int]], num_frames: int) -> NDArray[np.float32]:
    """Scores of two heads, of which each token attends to its own frames."""
    scores = np.zeros((2, len(spoken), num_frames), np.float32)
    for token, (first, last) in enumerate(spoken):
        scores[:, token, first:last] = 8
    return scores + np.random.default_rng(0).uniform(-1, 1, scores.shape).astype(np.float32)


def test_tokens_begin_where_they_are_attended_to() -> None:
    spoken = [(0, 40), (40, 100), (100, 110), (110, 200), (200, 240)]
    found = token_times(heads(spoken, 1500), 240, FRAME)
    assert found == pytest.approx([first * FRAME for first, _ in spoken], abs=2.5 * FRAME)


def test_frames_behind_the_sound_do_not_count() -> None:
    scores = heads([(0, 40), (40, 80)], 1500)
    scores[:, :, 700:] = 30
    assert token_times(scores, 80, FRAME) == pytest.approx([0, 0.8], abs=2.5 * FRAME)


@pytest.mark.parametrize("num_frames", [0, 1, 2, 3, 4, 7])
def test_shortest_sounds_have_times(num_frames: int) -> None:
    found = token_times(heads([(0, 1), (1, 2), (2, 3)], 1500), num_frames, FRAME)
    assert len(found) == 3
    assert found == sorted(found)
    assert 0 <= found[0] <= found[-1] <= max(0, num_frames - 1) * FRAME
