"""Which tokens a transcript may have after others."""

import numpy as np
import pytest

from genai_server.engine.sampling.continuation import with_rules
from genai_server.messages.generation_request import TranscriptRules

# Texts are 0 to 3; 4 marks a sound, 5 ends the text, 6 is special. Timestamps follow.
_TEXTS, _END, _FIRST, _SIZE = [0, 1, 2, 3], 5, 7, 12
_TIMES = [*range(_FIRST, _SIZE)]
_RULES = TranscriptRules([4, 6], _END, _FIRST, max_first=1)


def _allowed(*transcript: int, rules: TranscriptRules = _RULES, logits: dict[int, float] | None = None) -> list[int]:
    given = np.zeros(_SIZE, np.float32)
    for token, value in (logits or {}).items():
        given[token] = value
    return np.flatnonzero(with_rules(rules, transcript, given) > -np.inf).tolist()


# Any single text is likelier than all times together.
_TEXT_IS_LIKELY: dict[int, float] = {1: 9.0}


def test_it_begins_with_an_early_time() -> None:
    assert _allowed() == [_FIRST, _FIRST + 1]
    assert _allowed(rules=TranscriptRules([4, 6], _END, _FIRST, max_first=3)) == _TIMES[:4]


def test_a_segment_begins_with_text() -> None:
    assert _allowed(_FIRST) == [*_TEXTS, _END]
    assert _allowed(_FIRST, 1, _FIRST + 2, _FIRST + 2) == [*_TEXTS, _END]


def test_the_end_of_a_segment_lies_behind_its_start() -> None:
    assert _allowed(_FIRST + 1, 2, logits=_TEXT_IS_LIKELY) == [*_TEXTS, _END, *_TIMES[2:]]


def test_a_segment_or_the_end_follows_one() -> None:
    assert _allowed(_FIRST, 1, _FIRST + 2, logits={_END: 9.0}) == [_END, *_TIMES[2:]]


def test_a_time_is_chosen_where_all_times_are_likelier() -> None:
    # Four equal times have more than any one of the texts, though each of them has less.
    assert _allowed(_FIRST, 1, logits={1: 1.0}) == _TIMES[1:]
    assert _allowed(_FIRST, 1, logits={1: 1.5}) == [*_TEXTS, _END, *_TIMES[1:]]


@pytest.mark.parametrize("transcript", [(), (_FIRST,), (_FIRST, 1)])
def test_the_given_logits_are_left_as_they_are(transcript: tuple[int, ...]) -> None:
    logits = np.zeros(_SIZE, np.float32)
    with_rules(_RULES, transcript, logits)
    assert not logits.any()
