"""Words from the tokens of a transcript."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genai_server.apis.transcriptions.windows import Span, Word, bounded, compression_ratio, split, words_of
from tests.apis.transcriptions.doubles import MODEL, at


def words(pieces: list[bytes], language: str = "en") -> list[tuple[str, float, float]]:
    """Each token begins one second after the one before it."""
    times = [float(time) for time in range(len(pieces) + 1)]
    found = words_of(range(len(pieces)), times, pieces.__getitem__, language)
    return [(word.text, word.start, word.end) for word in found]


@pytest.mark.parametrize(
    ("pieces", "language", "expected"),
    [
        ([b" The", b" be", b"ach", b" was"], "en", [("The", 0, 1), ("beach", 1, 3), ("was", 3, 4)]),
        ([b"The", b" end"], "en", [("The", 0, 1), ("end", 1, 2)]),
        # Punctuation has no time of its own.
        ([b" So", b",", b" yes", b"!", b"?"], "en", [("So", 0, 1), ("yes", 2, 3)]),
        ([b' "', b"No", b'"', b" -", b" never"], "en", [("No", 1, 2), ("never", 4, 5)]),
        ([b" don", b"'t", b" 3", b".", b"5"], "en", [("don't", 0, 2), ("3.5", 2, 5)]),
        ([b' " (', b" ) Yes", b' . "'], "en", [("Yes", 1, 2)]),
        ([b".", b" ", b"a", b" ", b"!"], "zh", [("a", 2, 3)]),
        # A character may have several tokens.
        ([b" caf", b"\xc3", b"\xa9", b" au"], "en", [("café", 0, 3), ("au", 3, 4)]),
        ([b" a", b"\xc3"], "en", [("a\ufffd", 0, 2)]),
        # Languages without spaces have a word for each character.
        *(
            (["你".encode(), b"\xe5\xa5", b"\xbd", "。".encode()], language, [("你", 0, 1), ("好", 1, 3)])
            for language in ("zh", "ja", "yue")
        ),
        ([], "en", []),
        ([b".", b" "], "en", []),
    ],
)
def test_words_begin_with_a_space(pieces: list[bytes], language: str, expected: list[tuple[str, float, float]]) -> None:
    assert words(pieces, language) == expected


@given(st.lists(st.sampled_from([b" ", b".", b"-", b"a", b"\n", b"\xc3", b"\xa9", b"\xff", b" b", "。".encode()])))
def test_no_word_has_spaces_at_its_ends(pieces: list[bytes]) -> None:
    for language in ("en", "zh"):
        assert all(text and text == text.strip() for text, _, _ in words(pieces, language))


@pytest.mark.parametrize(
    ("given", "segment", "expected"),
    [
        # Silence around a segment is part of no word.
        ([("a", 0.0, 2.0), ("b", 2.0, 2.5), ("c", 2.5, 9.0)], (1.5, 3.0), [(1.5, 2.0), (2.0, 2.5), (2.5, 3.0)]),
        ([], (0.0, 1.0), []),
        ([("a", 0.0, 1.0), ("b", 1.0, 9.0), ("c", 9.0, 9.5)], (4.0, 5.0), [(3.5, 3.5), (3.5, 5.5), (5.5, 5.5)]),
    ],
)
def test_words_stay_near_their_segment(
    given: list[tuple[str, float, float]], segment: tuple[float, float], expected: list[tuple[float, float]]
) -> None:
    found = bounded([Word(*word) for word in given], *segment)
    assert found == [Word(text, *times) for (text, *_), times in zip(given, expected, strict=True)]


WINDOW = 30.0
A, B = 7, 8


TWO = [at(0), A, at(4), at(4.5), B, at(9)]
SHORT = [at(0), A, at(0.5), at(0.5), B]


@pytest.mark.parametrize(
    ("tokens", "duration", "expected", "complete"),
    [
        pytest.param(
            [*TWO, at(9)],
            WINDOW,
            [([at(0), A, at(4)], 0.0, 4.0), ([at(4.5), B, at(9)], 4.5, 9.0)],
            9.0,
            id="pairs of timestamps separate segments",
        ),
        pytest.param(
            [at(0), A, at(4), at(4), B, B],
            WINDOW,
            [([at(0), A, at(4)], 0.0, 4.0)],
            4.0,
            id="text without an end is left to the next window",
        ),
        pytest.param(
            TWO,
            WINDOW,
            [([at(0), A, at(4)], 0.0, 4.0), ([at(4.5), B, at(9)], 4.5, 9.0)],
            WINDOW,
            id="a single timestamp at the end completes the window",
        ),
        ([at(1), A, at(9)], WINDOW, [([at(1), A, at(9)], 1.0, 9.0)], WINDOW),
        # Text without other timestamps is the whole window.
        ([at(0), A, B], 12.0, [([at(0), A, B], 0.0, 12.0)], 12.0),
        ([at(2), A, B], 12.0, [([at(2), A, B], 2.0, 12.0)], 12.0),
        ([A, B], 12.0, [([A, B], 0.0, 12.0)], 12.0),
        # Otherwise each window could complete 0.02 s, and an hour would take 180,000 windows.
        (SHORT, WINDOW, [(SHORT, 0.0, WINDOW)], WINDOW),
        (SHORT, 0.4, [(SHORT[:3], 0.0, 0.5)], 0.4),
        pytest.param(
            [at(0), A, at(9), at(9), B], 5.0, [([at(0), A, at(9)], 0.0, 9.0)], 5.0, id="progress ends with the window"
        ),
        ([], WINDOW, [], WINDOW),
        ([at(0)], WINDOW, [([at(0)], 0.0, WINDOW)], WINDOW),
    ],
)
def test_timestamps_divide_a_window_into_segments(
    tokens: list[int], duration: float, expected: list[tuple[list[int], float, float]], complete: float
) -> None:
    found, until = split(tokens, MODEL, duration)
    assert ([(tokens[span.first : span.last], span.start, span.end) for span in found], until) == (expected, complete)


@pytest.mark.parametrize(
    ("tokens", "expected", "complete"),
    [
        (TWO, [Span(0, 3, 0.0, 4.0), Span(3, 6, 4.5, 9.0)], 9.0),
        ([at(1), A, at(9)], [Span(0, 3, 1.0, 9.0)], 9.0),
        # A segment at the end is incomplete.
        ([*TWO[:5], at(29.96)], [Span(0, 3, 0.0, 4.0)], 4.0),
        ([at(4.5), B, at(29.96)], [Span(0, 3, 4.5, 29.96)], WINDOW),
    ],
)
def test_cut_window_is_complete_up_to_its_last_end(tokens: list[int], expected: list[Span], complete: float) -> None:
    assert split(tokens, MODEL, WINDOW, is_cut=True) == (expected, complete)


def test_repetition_can_be_compressed() -> None:
    assert compression_ratio("no " * 100) > 10
    assert compression_ratio("The quick brown fox jumps over the lazy dog.") < 1.2
    assert compression_ratio("") == 0.0
