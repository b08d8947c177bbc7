"""Windows of speech for the demo model: sentences with pauses, silence, noise, and the tokens to write for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from _models import speech_files as whisper
from _models.speech_files import POSITIONS_PER_SECOND, SAMPLE_RATE, WINDOW_SECONDS
from tokenizers import Tokenizer
from transformers.audio_utils import mel_filter_bank

from .speech_sounds import Recording, noise, worsened
from .spoken_text import plain_words, sentence

LETTERS = " abcdefghijklmnopqrstuvwxyz"  # of the loss on the encoder; 0 is its blank
IGNORED = -100
MELS, FFT, HOP = 80, 400, 160
WHOLE = WINDOW_SECONDS * 100  # frames
_SORTED = 64  # windows among which those of similar length are found
_POSITION = SAMPLE_RATE // POSITIONS_PER_SECOND  # samples
_HANN = torch.hann_window(FFT)
_MEL = mel_filter_bank(1 + FFT // 2, MELS, 0.0, SAMPLE_RATE / 2, SAMPLE_RATE, norm="slaney", mel_scale="slaney")
_FILTERS = torch.from_numpy(_MEL.T.astype(np.float32))


def log_mel(samples: np.ndarray) -> torch.Tensor:
    """Log-mel frames [MELS, frames], one for each 160 of the samples [n]; silence is the least of all values.

    It equals that of onnxruntime-genai's processor for Whisper up to rounding. Transformers' differs at the ends of a
    recording, which it continues with a reflection, and onnxruntime-genai with silence.
    """
    spectrum = torch.stft(
        torch.from_numpy(samples), FFT, HOP, window=_HANN, center=True, pad_mode="constant", return_complex=True
    )
    power = spectrum[:, :-1].abs() ** 2
    logs = (_FILTERS @ power).clamp(min=1e-10).log10()
    result: torch.Tensor = (torch.maximum(logs, logs.max() - 8) + 4) / 4
    return result


@dataclass(frozen=True)
class Lesson:
    """What training is about at some time.

    Windows have up to `sentences` and are up to `seconds` long; `frames` are those of a batch,
    `pauses` what their usual lengths are multiplied by. A `whole` window has
    silence behind it up to its 30 s, as the exported model gets it.
    """

    sentences: int
    seconds: float
    frames: int
    pauses: float = 1.0
    whole: bool = False
    prompts: bool = True


@dataclass(frozen=True)
class Window:
    """`spoken` are start and end of each sentence in samples, and its text."""

    samples: np.ndarray
    spoken: list[tuple[int, int, str]]


@dataclass(frozen=True)
class Batch:
    """`features` [rows, mels, frames], which begin `offset` positions behind the window's start.

    `tokens` and `targets` are [rows, length], targets IGNORED where nothing is to be learned. `letters` [rows, most]
    and their number [rows] are what the encoder should hear.
    """

    features: torch.Tensor
    offset: int
    tokens: torch.Tensor
    targets: torch.Tensor
    letters: torch.Tensor
    letter_counts: torch.Tensor


def written(
    window: Window, tokenizer: Tokenizer, lesson: Lesson, offset: int, rng: Random
) -> tuple[list[int], list[int]]:
    """The tokens to write for a window, and its targets, which are the tokens that follow them."""
    before = ""
    if lesson.prompts and rng.random() < 0.1:
        before = whisper.START_OF_PREVIOUS + "".join(" " + sentence(rng) for _ in range(rng.randint(1, 3)))
    timed = rng.random() < 0.5
    text = f"{whisper.START}<|en|>{whisper.TRANSCRIBE}{'' if timed else whisper.NO_TIMESTAMPS}"
    for number, (start, end, said) in enumerate(window.spoken):
        times = [min(offset + round(at / _POSITION), whisper.TIMESTAMPS - 1) for at in (start, end)]
        if not number and not offset:
            times[0] = min(times[0], POSITIONS_PER_SECOND)  # no first timestamp is later than 1 s
        first, last = map(whisper.timestamp, times) if timed else ("", "")
        text += f"{first} {said}{last}"
    if timed and not window.spoken:
        text += whisper.timestamp(0)
    earlier, tokens = (list(tokenizer.encode(part).ids) for part in (before, text + whisper.END_OF_TEXT))
    targets: list[int] = [IGNORED] * len(earlier) + tokens[1:]
    if not timed:
        targets[len(earlier) + 2] = IGNORED  # whether to write times is not the model's choice
    if not window.spoken:
        targets[len(earlier)] = tokenizer.encode(whisper.NO_SPEECH).ids[0]
    return [*earlier, *tokens][:-1], targets


def random_window(recordings: Sequence[Recording], lesson: Lesson, rng: Random) -> Window:
    """Some sentences with pauses before, between and behind them, or none."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    if lesson.prompts and rng.random() < 0.04:
        return Window(_nothing(int(rng.uniform(0.5, min(lesson.seconds, 10)) * SAMPLE_RATE), numbers), [])
    most = int(lesson.seconds * SAMPLE_RATE)
    parts = [_pause(rng, rng.choice((0.0, 0.3, 1.5)) * lesson.pauses)]
    spoken: list[tuple[int, int, str]] = []
    at = len(parts[0])
    for _ in range(rng.randint(1, lesson.sentences)):
        text, samples = rng.choice(recordings)
        sound = samples.astype(np.float32) / 32768 * np.float32(10 ** rng.uniform(-0.2, 0.2))
        if spoken and at + len(sound) > most:
            break
        spoken.append((at, at + len(sound), text))
        pause = _pause(rng, rng.choice((0.4, 1.0, 2.5)) * lesson.pauses, least=0.1)
        parts += [sound, pause]
        at += len(sound) + len(pause)
    whole = np.concatenate(parts)
    end = max(spoken[-1][1], min(len(whole), most))
    return Window(worsened(whole[:end], numbers), spoken)


def _pause(rng: Random, most: float, least: float = 0.0) -> np.ndarray:
    return np.zeros(int(rng.uniform(least, max(most, least)) * SAMPLE_RATE), np.float32)


def _nothing(length: int, numbers: np.random.Generator) -> np.ndarray:
    if numbers.random() < 0.2:
        return np.zeros(length, np.float32)
    return noise(length, numbers) * np.float32(10 ** numbers.uniform(-4, -0.7))


def make_batches(recordings: Sequence[Recording], tokenizer: Tokenizer, lesson: Lesson, rng: Random) -> Iterator[Batch]:
    """Some batches of windows that are about as long as one another."""
    windows = sorted((random_window(recordings, lesson, rng) for _ in range(_SORTED)), key=lambda w: len(w.samples))
    groups: list[list[Window]] = [[]]
    for window in windows:
        frames = WHOLE if lesson.whole else len(window.samples) // HOP
        if groups[-1] and (len(groups[-1]) + 1) * frames > lesson.frames:
            groups.append([])
        groups[-1].append(window)
    rng.shuffle(groups)
    for group in groups:
        yield _batch(group, tokenizer, lesson, rng)


def _batch(windows: list[Window], tokenizer: Tokenizer, lesson: Lesson, rng: Random) -> Batch:
    frames = WHOLE if lesson.whole else max(len(window.samples) for window in windows) // HOP
    frames = min(frames + rng.choices((2, 100, 500), (70, 24, 6))[0], WHOLE)
    frames += frames % 2
    offset = 0
    if lesson.prompts and not lesson.whole and rng.random() < 0.25:
        offset = rng.randint(0, WINDOW_SECONDS * POSITIONS_PER_SECOND - frames // 2)
    features = torch.stack([_padded(log_mel(window.samples), frames) for window in windows])
    rows = [written(window, tokenizer, lesson, offset, rng) for window in windows]
    spelled = [" ".join(word for _, _, text in w.spoken for word in plain_words(text)) for w in windows]
    letters = [[1 + LETTERS.index(letter) for letter in text] for text in spelled]
    return Batch(
        features,
        offset,
        _rectangle([tokens for tokens, _ in rows], tokenizer.encode(whisper.END_OF_TEXT).ids[0]),
        _rectangle([targets for _, targets in rows], IGNORED),
        _rectangle(letters, 0),
        torch.tensor([len(row) for row in letters]),
    )


def _padded(features: torch.Tensor, frames: int) -> torch.Tensor:
    missing = frames - features.shape[1]
    # The library finds silence in the rest of the window, which is the floor of the scale.
    floor = (features.max() - 2.0).clamp(min=-1.5)
    return torch.cat([features, floor.expand(MELS, missing)], 1) if missing > 0 else features[:, :frames]


def _rectangle(rows: list[list[int]], filler: int) -> torch.Tensor:
    most = max(1, *map(len, rows))
    return torch.tensor([row + [filler] * (most - len(row)) for row in rows])
