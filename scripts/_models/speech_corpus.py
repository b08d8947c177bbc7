"""Sentences that espeak-ng has spoken, kept in a file, since speaking takes as long as learning from it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from .speech_sounds import random_voice, speak
from .spoken_text import sentence


@dataclass(frozen=True)
class Corpus:
    """`samples` of all sentences one behind the other, int16 at 16 kHz; sentence i ends before `ends[i]`."""

    samples: np.ndarray
    ends: np.ndarray
    texts: list[str]

    def sound(self, at: int) -> np.ndarray:
        """Samples [n] of a sentence between -1 and 1."""
        start = self.ends[at - 1] if at else 0
        return self.samples[start : self.ends[at]].astype(np.float32) / 32768


def make_corpus(folder: Path, sentences: int, rng: Random, threads: int) -> None:
    """Have them spoken by the voices of the training, each sentence by one."""
    wanted = [(sentence(rng), random_voice(rng)) for _ in range(sentences)]
    with ThreadPoolExecutor(threads) as pool:
        spoken = [(np.clip(sound, -1, 1) * 32767).astype(np.int16) for sound in pool.map(lambda w: speak(*w), wanted)]
    np.save(folder / "samples.npy", np.concatenate(spoken))
    np.save(folder / "ends.npy", np.cumsum([len(sound) for sound in spoken]))
    (folder / "texts.json").write_text(json.dumps([text for text, _ in wanted]))


def load_corpus(folder: Path) -> Corpus:
    """What `make_corpus` wrote, the samples left on the disk."""
    texts = json.loads((folder / "texts.json").read_text())
    return Corpus(np.load(folder / "samples.npy", mmap_mode="r"), np.load(folder / "ends.npy"), texts)
