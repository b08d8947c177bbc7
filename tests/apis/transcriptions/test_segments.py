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


def test_words_begin_with_a_space() -> None:
    assert words([b" The", b" be", b"ach", b" was"]) == [("The", 0, 1), ("beach", 1, 3), ("was", 3, 4)]
    assert words([b"The", b" end"]) == [("The", 0, 1), ("end", 1, 2)]


def test_punctuation_has_no_time_of_its_own() -> None:
    assert words([b" So", b",", b" yes", b"!", b"?"]) == [("So", 0, 1), ("yes", 2, 3)]
    assert words([b' "', b"No", b'"', b" -", b" never"]) == [("No", 1, 2), ("never", 4, 5)]
    assert words([b" don", b"'t", b" 3", b".", b"5"]) == [("don't", 0, 2), ("3.5", 2, 5)]


def test_marks_and_spaces_around_a_word_may_alternate() -> None:
    assert words([b' " (', b" ) Yes", b' . "']) == [("Yes", 1, 2)]
    assert words([b".", b" ", b"a", b" ", b"!"], "zh") == [("a", 2, 3)]


@given(st.lists(st.sampled_from([b" ", b".", b"-", b"a", b"\n", b"\xc3", b"\xa9", b"\xff", b" b", "。".encode()])))
def test_no_word_has_spaces_at_its_ends(pieces: list[bytes]) -> None:
    for language in ("en", "zh"):
        assert all(text and text == text.strip() for text, _, _ in words(pieces, language))


def test_characters_may_have_several_tokens() -> None:
    assert words([b" caf", b"\xc3", b"\xa9", b" au"]) == [("café", 0, 3), ("au", 3, 4)]
    assert words([b" a", b"\xc3"]) == [("a\ufffd", 0, 2)]


@pytest.mark.parametrize("language", ["zh", "ja", "yue"])
def test_languages_without_spaces_have_a_word_for_each_character(language: str) -> None:
    pieces = ["你".encode(), "好".encode()[:2], "好".encode()[2:], "。".encode()]
    assert words(pieces, language) == [("你", 0, 1), ("好", 1, 3)]


def test_no_tokens_are_no_words() -> None:
    assert words([]) == []
    assert words([b".", b" "]) == []


def test_silence_around_a_segment_is_part_of_no_word() -> None:
    found = bounded([Word("a", 0.0, 2.0), Word("b", 2.0, 2.5), Word("c", 2.5, 9.0)], 1.5, 3.0)
    assert found == [Word("a", 1.5, 2.0), Word("b", 2.0, 2.5), Word("c", 2.5, 3.0)]
    assert bounded([], 0.0, 1.0) == []


def test_words_stay_near_their_segment() -> None:
    assert bounded([Word("a", 0.0, 1.0), Word("b", 1.0, 9.0), Word("c", 9.0, 9.5)], 4.0, 5.0) == [
        Word("a", 3.5, 3.5),
        Word("b", 3.5, 5.5),
        Word("c", 5.5, 5.5),
    ]


WINDOW = 30.0
A, B = 7, 8


def spans(tokens: list[int], duration: float = WINDOW) -> list[tuple[list[int], float, float]]:
    found, _ = split(tokens, MODEL, duration)
    return [(tokens[span.first : span.last], span.start, span.end) for span in found]


def advance(tokens: list[int], duration: float = WINDOW) -> float:
    return split(tokens, MODEL, duration)[1]


def test_pairs_of_timestamps_separate_segments() -> None:
    tokens = [at(0), A, at(4), at(4.5), B, at(9), at(9)]
    assert spans(tokens) == [([at(0), A, at(4)], 0.0, 4.0), ([at(4.5), B, at(9)], 4.5, 9.0)]
    assert advance(tokens) == 9.0


def test_text_without_an_end_is_left_to_the_next_window() -> None:
    tokens = [at(0), A, at(4), at(4), B, B]
    assert spans(tokens) == [([at(0), A, at(4)], 0.0, 4.0)]
    assert advance(tokens) == 4.0


def test_single_timestamp_at_the_end_completes_the_window() -> None:
    tokens = [at(0), A, at(4), at(4.5), B, at(9)]
    assert [tokens for tokens, *_ in spans(tokens)] == [[at(0), A, at(4)], [at(4.5), B, at(9)]]
    assert advance(tokens) == WINDOW
    assert spans([at(1), A, at(9)]) == [([at(1), A, at(9)], 1.0, 9.0)]
    assert advance([at(1), A, at(9)]) == WINDOW


def test_cut_window_is_complete_up_to_its_last_end() -> None:
    tokens = [at(0), A, at(4), at(4.5), B, at(9)]
    assert split(tokens, MODEL, WINDOW, is_cut=True)[1] == 9.0
    assert split([at(1), A, at(9)], MODEL, WINDOW, is_cut=True) == ([Span(0, 3, 1.0, 9.0)], 9.0)


def test_segment_at_the_end_of_a_cut_window_is_incomplete() -> None:
    tokens = [at(0), A, at(4), at(4.5), B, at(29.9)]
    assert split(tokens, MODEL, WINDOW, is_cut=True) == ([Span(0, 3, 0.0, 4.0)], 4.0)
    (only,), complete = split(tokens[3:], MODEL, WINDOW, is_cut=True)
    assert (only.first, only.last, complete) == (0, 3, WINDOW)


def test_text_without_other_timestamps_is_the_whole_window() -> None:
    for tokens, start in (([at(0), A, B], 0.0), ([at(2), A, B], 2.0), ([A, B], 0.0)):
        assert spans(tokens, 12.0) == [(tokens, start, 12.0)]
        assert advance(tokens, 12.0) == 12.0


def test_short_progress_takes_the_window_as_a_whole() -> None:
    """Otherwise each window could complete 0.02 s, and an hour would take 180,000 windows."""
    tokens = [at(0), A, at(0.5), at(0.5), B]
    assert spans(tokens) == [(tokens, 0.0, WINDOW)]
    assert advance(tokens) == WINDOW
    assert advance([at(0), A, at(0.5), at(0.5), B], 0.4) == 0.4


def test_progress_ends_with_the_window() -> None:
    tokens = [at(0), A, at(9), at(9), B]
    assert advance(tokens, 5.0) == 5.0
    assert spans(tokens, 5.0) == [([at(0), A, at(9)], 0.0, 9.0)]


def test_no_tokens_make_no_segment() -> None:
    assert split([], MODEL, WINDOW) == ([], WINDOW)
    assert split([at(0)], MODEL, WINDOW) == ([Span(0, 1, 0.0, WINDOW)], WINDOW)


def test_repetition_can_be_compressed() -> None:
    assert compression_ratio("no " * 100) > 10
    assert compression_ratio("The quick brown fox jumps over the lazy dog.") < 1.2
    assert compression_ratio("") == 0.0
