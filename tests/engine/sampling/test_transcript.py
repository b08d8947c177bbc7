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


@pytest.mark.parametrize(
    ("transcript", "logits", "allowed"),
    [
        # It begins with an early time.
        ([], {}, _TIMES[:2]),
        # A segment begins with text.
        ([_FIRST], {}, [*_TEXTS, _END]),
        ([_FIRST, 1, _FIRST + 2, _FIRST + 2], {}, [*_TEXTS, _END]),
        # The end of a segment lies behind its start.
        ([_FIRST + 1, 2], _TEXT_IS_LIKELY, [*_TEXTS, _END, *_TIMES[2:]]),
        # A segment or the end follows one.
        ([_FIRST, 1, _FIRST + 2], {_END: 9.0}, [_END, *_TIMES[2:]]),
        # A time is chosen where four equal times have more than any one of the texts, though each of them has less.
        ([_FIRST, 1], {1: 1.0}, _TIMES[1:]),
        ([_FIRST, 1], {1: 1.5}, [*_TEXTS, _END, *_TIMES[1:]]),
    ],
)
def test_texts_and_times_alternate(transcript: list[int], logits: dict[int, float], allowed: list[int]) -> None:
    assert _allowed(*transcript, logits=logits) == allowed


def test_the_first_time_has_a_limit() -> None:
    assert _allowed(rules=TranscriptRules([4, 6], _END, _FIRST, max_first=3)) == _TIMES[:4]


@pytest.mark.parametrize("transcript", [(), (_FIRST,), (_FIRST, 1)])
def test_the_given_logits_are_left_as_they_are(transcript: tuple[int, ...]) -> None:
    logits = np.zeros(_SIZE, np.float32)
    with_rules(_RULES, transcript, logits)
    assert not logits.any()
