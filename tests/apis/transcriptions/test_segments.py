"""A window's tokens become segments at their timestamps, and the next window begins where the last one ends."""

from genai_server.apis.transcriptions.segments import Span, compression_ratio, split
from tests.apis.transcriptions.doubles import MODEL, at

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
