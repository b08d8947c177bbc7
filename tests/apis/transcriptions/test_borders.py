"""Known speech that begins at every second of a recording: no word is lost or doubled where windows meet.

The speech is real, and the detector finds the windows in it. The recognizer is scripted: it knows each word and its
times, and treats a word or a sentence that its window cuts as Whisper does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from genai_server.generation.engine_requests import EngineAnswer
from genai_server.media.audio.recordings import Window
from genai_server.media.audio.voice_activity import Detector, Probabilities, Samples, Speech, find_speech
from genai_server.messages.generation_request import GenerationRequest
from genai_server.text.codec import TextCodec
from tests.apis.transcriptions.doubles import HeldRequests, answer, at
from tests.apis.transcriptions.test_transcribe import begun, transcribed
from tests.media.audio.sounds import RATE, sentence

# Seconds. Short windows have many borders.
pytestmark = pytest.mark.anyio
WINDOW = 10.0
SPEECH = 40.0
# Samples of the detector's frames.
FRAME = 512
NUM_CUTS = round(SPEECH - 2 * WINDOW)
# A word of which less is in a window is not understood.
ENOUGH = 0.7
JITTER = 0.06


@dataclass(frozen=True)
class Spoken:
    """A sentence with the beginning and the end of each of its words, in seconds."""

    words: Sequence[tuple[str, float, float]]

    @property
    def start(self) -> float:
        return self.words[0][1]

    @property
    def end(self) -> float:
        return self.words[-1][2]


@cache
def speech(shortest: float, longest: float) -> tuple[Samples, tuple[Spoken, ...]]:
    """Real speech of `SPEECH` seconds: parts of a sentence, with pauses of these lengths between them."""
    rng, spoken = Random(5), sentence()
    parts, found = [np.zeros(0, np.int16)], []
    length, number = 0, 0
    while length < SPEECH * RATE:
        part = spoken[: rng.randrange(RATE, len(spoken))]
        num_words = max(2, round(len(part) / RATE * 2.5))
        edges = length / RATE + np.linspace(0, len(part) / RATE, num_words + 1)
        names = [f"w{number + index}" for index in range(num_words)]
        found.append(Spoken([(name, a, b) for name, a, b in zip(names, edges, edges[1:], strict=False)]))
        parts += [part, np.zeros(round(rng.uniform(shortest, longest) * RATE), np.int16)]
        length, number = length + len(parts[-2]) + len(parts[-1]), number + num_words
    return np.concatenate(parts), tuple(found)


@cache
def probabilities(pauses: tuple[float, float]) -> Probabilities:
    """What the detector says about each frame of the speech."""
    samples, _ = speech(*pauses)
    return Detector().start(int(samples.max())).probabilities(samples)


class Replayed:
    """Scores samples that are numbers, each its own place in the recording, as the detector has scored these places."""

    def __init__(self, found: Probabilities) -> None:
        self._found = found

    def probabilities(self, samples: Samples) -> Probabilities:
        frames = np.arange(samples[0], samples[-1] + 1, FRAME) // FRAME
        found: Probabilities = self._found[frames.clip(max=len(self._found) - 1)]
        return found


class HeardRecording:
    """The speech from a second on. Its windows are those that the detector's probabilities give."""

    def __init__(self, pauses: tuple[float, float], second: int) -> None:
        samples, _ = speech(*pauses)
        self._places: Any = np.arange(second * RATE, len(samples))
        self._scorer = Replayed(probabilities(pauses))
        self.duration = len(self._places) / RATE
        self.windows: list[Window] = []

    async def window(self, start: float, **_: Any) -> Window | None:
        sample = round(start * RATE)
        while sample < len(self._places):
            found = find_speech(self._scorer, self._places, sample, round(WINDOW * RATE), 120 * RATE)
            if isinstance(found, Speech):
                window = Window(
                    found.begin / RATE, found.end / RATE, Path("no-such-window.npz"), str(found), found.is_cut
                )
                self.windows.append(window)
                return window
            sample = found.end
        return None

    def close(self) -> None:
        pass


class Recognizer(HeldRequests):
    """Writes the words that are in the newest window, with times that are up to `JITTER` seconds wrong.

    A sentence that the window cuts has no end, or with `closes` one at the window's end. With `guesses` a cut word
    becomes another one.
    """

    def __init__(
        self,
        codec: TextCodec,
        recording: HeardRecording,
        spoken: Sequence[Spoken],
        *,
        closes: bool = False,
        guesses: bool = False,
    ) -> None:
        super().__init__()
        self._codec = codec
        self._recording = recording
        self._spoken = spoken
        self._rng = Random(7)
        self._closes, self._guesses = closes, guesses

    async def run(self, request: GenerationRequest) -> EngineAnswer:
        self.asked.append(request)
        window = self._recording.windows[-1]
        length = window.end - window.start
        tokens: list[int] = []
        for each in self._spoken:
            words, is_cut = self._heard(each, window)
            if not words:
                continue
            start, end = each.start - window.start, each.end - window.start
            text = self._codec.tokenizer.encode(" " + " ".join(words))
            tokens += [at(self._wrong(max(start, 0.0), tokens, length)), *text]
            if not is_cut:
                tokens.append(at(self._wrong(min(end, length), tokens, length)))
            elif self._closes:
                tokens.append(at(length))
        return answer(tokens)

    def _heard(self, each: Spoken, window: Window) -> tuple[list[str], bool]:
        """Words of a sentence, and whether the window ends within it."""
        words = []
        for word, a, b in each.words:
            share = (min(b, window.end) - max(a, window.start)) / (b - a)
            if share >= ENOUGH:
                words.append(word)
            elif share > 0.2 and self._guesses and b > window.end:
                words.append(f"x{word}")
        return words, each.end - window.end > JITTER

    def _wrong(self, time: float, tokens: Sequence[int], length: float) -> float:
        """A time with an error, but not before the ones before it."""
        latest = max((token for token in tokens if token >= at(0)), default=at(0))
        found = min(max(time + self._rng.uniform(-JITTER, JITTER), 0.0), length)
        return max(found, (latest - at(0)) / 50)


async def texts_of_all_cuts(codec: TextCodec, pauses: tuple[float, float], **manner: Any) -> list[tuple[str, str]]:
    """For each second at which the recording begins, the words that it has and those of its transcript."""
    _, spoken = speech(*pauses)
    found = []
    for second in range(NUM_CUTS):
        left = [
            Spoken([(word, a - second, b - second) for word, a, b in each.words if a >= second])
            for each in spoken
            if each.words[-1][1] >= second
        ]
        recording = HeardRecording(pauses, second)
        recognizer = Recognizer(codec, recording, left, **manner)
        segments = await transcribed(begun(codec, recording, recognizer))  # type: ignore[arg-type]
        found.append((" ".join(word for each in left for word, *_ in each.words), "".join(s.text for s in segments)))
    return [(said, " ".join(text.split())) for said, text in found]


@pytest.mark.parametrize(
    "manner",
    [{}, {"guesses": True}, {"closes": True}, {"closes": True, "guesses": True}],
    ids=["leaves cut words out", "guesses cut words", "ends cut sentences", "ends guesses"],
)
@pytest.mark.parametrize("pauses", [(0.5, 1.2), (0.2, 0.4), (0.03, 0.09)], ids=["pauses", "short pauses", "no pauses"])
async def test_no_word_is_lost_or_doubled(
    codec: TextCodec, pauses: tuple[float, float], manner: dict[str, Any]
) -> None:
    for said, text in await texts_of_all_cuts(codec, pauses, **manner):
        assert text == said


async def test_windows_cut_speech_without_pauses() -> None:
    """So the test above is about both: borders in pauses, and borders within words."""
    cuts = []
    for pauses in ((0.5, 1.2), (0.03, 0.09)):
        windows = [await HeardRecording(pauses, second).window(0.0) for second in range(NUM_CUTS)]
        cuts.append(sum(window is not None and window.is_cut for window in windows))
    assert cuts[0] < NUM_CUTS / 4 < NUM_CUTS / 2 < cuts[1]
