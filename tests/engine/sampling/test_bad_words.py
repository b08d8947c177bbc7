"""The tokens that would complete a bad word."""

import pytest

from genai_server.engine.sampling.sampler import BadWords


@pytest.mark.parametrize(
    ("words", "answer", "banned"),
    [
        ([[5], [6], [5]], [], {5, 6}),
        ([[5]], [5], {5}),
        ([[1, 2]], [], set()),
        ([[1, 2]], [1], {2}),
        ([[1, 2]], [2], set()),
        ([[1, 2]], [1, 3], set()),
        ([[1, 2], [9]], [3, 1], {2, 9}),
        ([[1, 1, 2]], [1], set()),
        ([[1, 1, 2]], [1, 1], {2}),
        ([[1, 1, 2]], [1, 1, 1], {2}),
        ([[1, 2], [3, 1, 4], [8, 1, 5]], [3, 1], {2, 4}),
    ],
)
def test_last_token_is_banned_where_the_others_precede_it(
    words: list[list[int]], answer: list[int], banned: set[int]
) -> None:
    found = BadWords(words)
    for token in answer:
        found.note(token)
    assert set(found.banned()) == banned
