"""Recordings for the demo model for speech: sentences that espeak-ng speaks, with rooms, noise and telephones added."""

from __future__ import annotations

import io
import math
import shutil
import subprocess
import wave
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
from _models.speech_files import SAMPLE_RATE
from numpy.fft import irfft, rfft, rfftfreq

from .spoken_text import sentence

ACCENTS = ("en-us", "en-gb")
VARIANTS = ("default", "m1", "m2", "m3", "m4", "m5", "m6", "m8", "f1", "f2", "f3", "f4")
_SILENCE = 0.004  # of the loudest sample
Recording = tuple[str, np.ndarray]  # a sentence, and its samples [n] as int16 at 16 kHz


def make_recordings(count: int, rng: Random, threads: int) -> list[Recording]:
    """Have random sentences spoken by random voices.

    They are spoken before the training, since speaking takes as long as learning from it.
    """
    if shutil.which("espeak-ng") is None:
        raise SystemExit("espeak-ng is not installed (on Debian: apt-get install espeak-ng)")
    wanted = [(sentence(rng), _random_voice(rng)) for _ in range(count)]
    with ThreadPoolExecutor(threads) as pool:
        spoken = pool.map(lambda one: (np.clip(speak(*one), -1, 1) * 32767).astype(np.int16), wanted)
        return [(text, samples) for (text, _), samples in zip(wanted, spoken, strict=True)]


def _random_voice(rng: Random) -> list[str]:
    """Options of espeak-ng: a voice, its speed in words per minute, and its pitch from 0 to 99."""
    variant = rng.choice(VARIANTS)
    accent = rng.choice(ACCENTS)
    name = accent if variant == "default" else f"{accent}+{variant}"
    return ["-v", name, "-s", str(rng.randint(115, 200)), "-p", str(rng.randint(25, 75))]


def speak(text: str, voice: Sequence[str]) -> np.ndarray:
    """Samples [n] at 16 kHz between -1 and 1, without silence at the ends."""
    command = ["espeak-ng", *voice, "--stdout", text]
    written = subprocess.run(command, check=True, capture_output=True).stdout
    with wave.open(io.BytesIO(written)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    samples = resampled(samples, rate)
    loud = np.flatnonzero(np.abs(samples) > _SILENCE * np.abs(samples).max())
    return samples[loud[0] : loud[-1] + 1]


def resampled(samples: np.ndarray, rate: int) -> np.ndarray:
    """From a rate of samples per second to 16 kHz."""
    common = math.gcd(rate, SAMPLE_RATE)
    parts = _fast_length(-(-len(samples) * common // rate))
    spectrum, size = rfft(samples, parts * rate // common), parts * SAMPLE_RATE // common
    result = irfft(spectrum[: size // 2 + 1], size) * (SAMPLE_RATE / rate)
    return result[: len(samples) * SAMPLE_RATE // rate].astype(np.float32)


def noise(length: int, rng: np.random.Generator) -> np.ndarray:
    """Noise [length] of a random color with an effective value of 1, now and then with a hum."""
    size = _fast_length(length)
    spectrum = rfft(rng.standard_normal(size, np.float32))
    spectrum /= np.maximum(np.arange(len(spectrum), dtype=np.float32), 20) ** rng.uniform(0.0, 1.2)
    result = irfft(spectrum, size)[:length]
    result /= np.sqrt(np.mean(result**2)) + 1e-9
    if rng.random() < 0.3:
        times = np.arange(length, dtype=np.float32) / SAMPLE_RATE
        result += np.sin(2 * np.pi * rng.choice([50, 60, 120, 440]) * times) * rng.uniform(0.3, 1.5)
    return np.asarray(result, np.float32)


def filtered(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Through a microphone whose response bends by some decibels."""
    points, decibels = np.linspace(0, SAMPLE_RATE / 2, 6), rng.uniform(-8, 8, 6)
    return _shaped(samples, lambda frequencies: 10 ** (np.interp(frequencies, points, decibels) / 20))


def room(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """With reverberation of up to a third of a second."""
    length = int(rng.uniform(0.05, 0.35) * SAMPLE_RATE)
    echo = rng.standard_normal(length) * np.exp(-5.0 * np.arange(length) / length) * rng.uniform(0.02, 0.15)
    echo[0] = 1.0
    size = _fast_length(len(samples) + length)
    spectrum = rfft(samples, size) * rfft(echo.astype(np.float32), size)
    return np.asarray(irfft(spectrum, size)[: len(samples)], np.float32)


def worsened(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As a recording might be: clean, in a room, over a telephone, with noise, loud or quiet."""
    if rng.random() < 0.3:
        samples = filtered(samples, rng)
    if rng.random() < 0.25:
        samples = room(samples, rng)
    if rng.random() < 0.2:
        samples = _shaped(samples, lambda hertz: ((hertz >= 300) & (hertz <= 3400)).astype(np.float32))
    if rng.random() < 0.4:
        # By decibels quieter than the speech, whose pauses count in its level.
        level = np.sqrt(np.mean(samples**2)) * 10 ** (-rng.uniform(6, 40) / 20)
        samples = np.asarray(samples + level * noise(len(samples), rng), np.float32)
    return np.asarray(samples * (10 ** rng.uniform(-1.5, 0.0) / (np.abs(samples).max() + 1e-6)), np.float32)


def _fast_length(least: int) -> int:
    """Of a Fourier transform."""
    return min(factor << max(0, (-(-least // factor) - 1).bit_length()) for factor in (1, 3, 5, 9, 15))


def _shaped(samples: np.ndarray, gain: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    size = _fast_length(len(samples))
    gains = gain(rfftfreq(size, 1 / SAMPLE_RATE)).astype(np.float32)
    return np.asarray(irfft(rfft(samples, size) * gains, size)[: len(samples)], np.float32)
