"""Recordings of given sentences, for tests and as an example."""

from __future__ import annotations

import numpy as np

from .speech_sounds import SAMPLE_RATE, Voice, speak, telephone, wav
from .spoken_text import is_held_out

PAUSE = 1.0  # seconds between sentences


def example() -> bytes:
    """The WAV file that comes with the demo model."""
    return record(SAMPLE_RATE, "en-us+f5", 160, ["What is the weather like in Chicago on Thursday?"])[0]


def record(rate: int, voice: str, speed: int, sentences: list[str]) -> tuple[bytes, list[tuple[float, float]]]:
    """A WAV file, and start and end of each sentence in seconds.

    Raises ValueError for a sentence that the training has.
    """
    if trained := [text for text in sentences if not is_held_out(text)]:
        raise ValueError(f"sentences of the training: {trained}")
    silence = np.zeros(int(PAUSE * SAMPLE_RATE), np.float32)
    parts, segments, at = [silence[: SAMPLE_RATE // 4]], [], SAMPLE_RATE // 4
    for text in sentences:
        spoken = speak(text, Voice(voice, speed, 50))
        segments.append((at / SAMPLE_RATE, (at + len(spoken)) / SAMPLE_RATE))
        parts += [spoken, silence]
        at += len(spoken) + len(silence)
    samples = np.concatenate([*parts[:-1], silence[: SAMPLE_RATE // 4]])
    if rate == SAMPLE_RATE:
        return wav(samples, rate), segments
    return wav(telephone(samples)[:: SAMPLE_RATE // rate], rate), segments
