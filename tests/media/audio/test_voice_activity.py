"""Finding speech: where parts begin and end, by Silero's detector and by made-up probabilities."""

from typing import Any

import numpy as np
import pytest

from genai_server.media.audio.detection import Detection
from genai_server.media.audio.voice_activity import Detector, Probabilities, Samples, Silence, Speech, find_speech
from tests.media.audio.sounds import RATE, sentence, silence, tone

_FRAME = 512
_LIMIT = 30 * RATE
_DETECTOR = Detector()


class _Made:
    """Gives the probability that is written in the samples, times 1000."""

    def __init__(self) -> None:
        self.heard = 0

    def probabilities(self, samples: Samples) -> Probabilities:
        self.heard += len(samples)
        padded = np.append(samples, np.zeros(-len(samples) % _FRAME, np.int16))
        found: Probabilities = padded.reshape(-1, _FRAME).max(axis=1).astype(np.float32) / 1000
        return found


def _made(*parts: tuple[int, float]) -> Samples:
    """Samples of some numbers of frames with these probabilities."""
    return np.concatenate([np.full(frames * _FRAME, 1000 * likely, np.int16) for frames, likely in parts])


def _found(
    samples: Samples,
    start: int = 0,
    limit: int = _LIMIT,
    max_silence: int = 60 * RATE,
    detection: Detection = Detection(),  # noqa: B008
) -> tuple[float, ...]:
    """Begin and end of the next speech, or the end of the silence, in frames."""
    found = find_speech(_Made(), samples, start * _FRAME, limit, max_silence, detection)
    return tuple(sample / _FRAME for sample in found[:2])


_PAD = RATE / _FRAME


def test_detector_tells_speech_from_silence_and_tones() -> None:
    samples = np.concatenate([silence(2), sentence(), tone(3), sentence(), silence(1)])
    found = _DETECTOR.start(24_000).probabilities(samples) > 0.5
    is_speech = np.repeat(found, _FRAME)[: len(samples)]
    length = len(sentence())
    assert not is_speech[: 2 * RATE - _FRAME].any()
    assert is_speech[2 * RATE + 2000 :][: length - 5000].mean() > 0.9
    assert is_speech[2 * RATE + length + RATE // 2 :][: 2 * RATE].mean() == 0
    assert not is_speech[-RATE // 2 :].any()


def test_detector_hears_the_same_in_blocks() -> None:
    samples = np.concatenate([silence(1), sentence(), silence(1)])
    whole, parts = _DETECTOR.start(24_000), _DETECTOR.start(24_000)
    joined = [parts.probabilities(samples[at : at + 20 * _FRAME]) for at in range(0, len(samples), 20 * _FRAME)]
    assert np.allclose(np.concatenate(joined), whole.probabilities(samples), atol=1e-5)


@pytest.mark.parametrize("factor", [1, 0.01, 0.001])
def test_quiet_speech_is_found(factor: float) -> None:
    samples = np.concatenate([silence(3), (sentence() * factor).astype(np.int16), silence(3)])
    found = find_speech(_DETECTOR.start(int(np.abs(samples).max())), samples, 0, _LIMIT, 60 * RATE)
    assert isinstance(found, Speech)
    assert 1.9 * RATE < found.begin <= 2.3 * RATE
    assert 3 * RATE + len(sentence()) + 0.4 * RATE < found.end < len(samples) - 1.3 * RATE


def test_noise_is_silence() -> None:
    noise = (np.random.default_rng(0).standard_normal(20 * RATE) * 300).astype(np.int16)
    assert find_speech(_DETECTOR.start(1500), noise, 0, _LIMIT, 60 * RATE) == Silence(len(noise))


_FULL = _LIMIT / _FRAME
_TWO_SOUNDS = [(100, 0), (20, 0.4), (100, 0), (20, 0.8), (100, 0)]
_PAUSES = [(75, 1), (20, 0), (5, 1), (6, 0), (100, 1)]
_SHORT_LIMIT = 110 * _FRAME


@pytest.mark.parametrize(
    ("parts", "options", "found"),
    [
        # A part begins shortly before speech, and ends shortly after it, within the samples that are left.
        ([(100, 0), (50, 0.9), (5, 0)], {}, (100 - _PAD, 155)),
        ([(5, 0), (50, 0.9), (5, 0)], {}, (0, 60)),
        ([(100, 0.9)], {"start": 50}, (50, 100)),
        # Speech before the start is not found again.
        ([(20, 0.9), (100, 0)], {"start": 30}, (120,)),
        ([(90, 0.9), (10, 0), (5, 0.9)], {"start": 95}, (95, 105)),
        # Silence at the end is cut off.
        ([(10, 0.9), (100, 0)], {}, (0, 10 + _PAD)),
        ([(10, 0.9), (5, 0)], {}, (0, 15)),
        ([(10, 0.9), (2000, 0), (10, 0.9)], {}, (0, 10 + _PAD)),
        ([(10, 0.9), (300, 0), (10, 0.9)], {}, (0, 320)),
        # Unsure frames count as speech, but not if they are few and alone.
        ([(100, 0), (3, 0.25), (100, 0), (10, 0.9)], {}, (100 - _PAD, 213)),
        ([(10, 0.9), (100, 0.25), (50, 0)], {}, (0, 110 + _PAD)),
        ([(100, 0), (2, 0.4), (98, 0)], {}, (200,)),
        ([(100, 0), (1, 0.6), (98, 0)], {}, (100 - _PAD, 101 + _PAD)),
        # A long part ends in the last long pause near its end, or else in the longest of short ones.
        ([(700, 0.9), (12, 0), (50, 0.9), (10, 0), (50, 0.9), (5, 0), (1000, 0.9)], {}, (0, 767)),
        ([(700, 0.9), (4, 0), (50, 0.9), (6, 0), (50, 0.9), (5, 0), (1000, 0.9)], {}, (0, 757)),
        # Without one it has the full length.
        ([(2000, 0.9)], {}, (0, _FULL)),
        ([(300, 0.9), (20, 0), (2000, 0.9)], {}, (0, _FULL)),
        ([(800, 0.9), (3, 0), (2000, 0.9)], {}, (0, _FULL)),
        # The next part continues where the first ends.
        ([(800, 0.9), (12, 0), (500, 0.9)], {}, (0, 806)),
        ([(800, 0.9), (12, 0), (500, 0.9)], {"start": 806}, (806, 1312)),
        # Requests may choose the threshold, the padding, and the length of pauses.
        (_TWO_SOUNDS, {}, (100 - _PAD, 240 + _PAD)),
        (_TWO_SOUNDS, {"detection": Detection(threshold=0.6)}, (220 - _PAD, 240 + _PAD)),
        (_TWO_SOUNDS, {"detection": Detection(padding=4 * _FRAME)}, (96, 240 + _PAD)),
        (_PAUSES, {"limit": _SHORT_LIMIT}, (0, 85)),
        (_PAUSES, {"limit": _SHORT_LIMIT, "detection": Detection(pause=5 * _FRAME)}, (0, 103)),
        (_PAUSES, {"limit": _SHORT_LIMIT, "detection": Detection(pause=30 * _FRAME)}, (0, 110)),
    ],
)
def test_parts_begin_and_end_around_speech(
    parts: list[tuple[int, float]], options: dict[str, Any], found: tuple[float, ...]
) -> None:
    assert _found(_made(*parts), **options) == found


def test_long_silence_is_searched_in_parts() -> None:
    samples = _made((5000, 0), (100, 0.9))
    (end,) = _found(samples, max_silence=1000 * _FRAME)
    assert 900 < end < 1600
    while len(found := _found(samples, int(end), max_silence=1000 * _FRAME)) == 1:
        assert found[0] > end
        end = found[0]
    assert found == (5000 - _PAD, 5100)


def test_speech_at_the_border_of_a_search_is_not_lost() -> None:
    for silent in range(506, 516):
        samples = _made((silent, 0), (3, 0.25), (2000, 0))
        found = _found(samples, max_silence=500 * _FRAME)
        while len(found) == 1 and found[0] < len(samples) // _FRAME:
            found = _found(samples, int(found[0]), max_silence=500 * _FRAME)
        assert found == (silent - _PAD, silent + 3 + _PAD)


@pytest.mark.parametrize(
    ("parts", "is_cut"),
    [
        ([(200, 1)], True),
        ([(98, 1), (60, 0), (100, 1)], True),
        ([(90, 1), (60, 0), (100, 1)], False),
        ([(80, 1), (10, 0), (100, 1)], False),
        ([(50, 1)], False),
        ([(100, 1)], False),
    ],
)
def test_part_is_cut_where_speech_goes_on(parts: list[tuple[int, float]], *, is_cut: bool) -> None:
    found = find_speech(_Made(), _made(*parts), 0, 100 * _FRAME, 60 * RATE)
    assert isinstance(found, Speech)
    assert found.is_cut is is_cut


def test_no_more_is_heard_than_the_part_needs() -> None:
    made = _Made()
    samples = _made((100, 0), (100_000, 0.9))
    find_speech(made, samples, 0, _LIMIT, 600 * RATE)
    assert made.heard < 2 * _LIMIT


def test_recording_of_one_sample_has_no_speech() -> None:
    assert find_speech(_DETECTOR.start(5), np.ones(1, np.int16), 0, _LIMIT, 60 * RATE) == Silence(1)
