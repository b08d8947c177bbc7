"""Finds the parts of a recording in which somebody speaks (`find_speech`), with Silero's voice activity detection model
(`Detector`).

Speech models transcribe these parts, and are spared silence. Samples are mono, of 16 bits and at 16 kHz.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from genai_server.media.audio.detection import Detection
from genai_server.model_files.speech_and_vision import SAMPLE_RATE

# MIT licence, from the package silero-vad 6.2.3 (silero_vad_16k_sequence.onnx).
_MODEL = Path(__file__).with_name("silero_vad.onnx")
# Samples that get one probability, and samples before them that the model sees, too.
_FRAME, _CONTEXT = 512, 64
_STATE = (1, 1, 128)
# Frames in one run of the model.
_BLOCK = 512
# The detector gets this much before the place from which on it is asked, in frames.
_WARM_UP_FRAMES = 32
# Above this probability, one frame is speech; else it takes some in a row.
_SURE = 0.5
_FRAMES_OF_SPEECH = 3
# What is kept after speech, in samples.
_PAD = SAMPLE_RATE
# A window ends at a pause of this many frames in its last part, preferably at a long one.
_PAUSE, _LONG_PAUSE = 4, 10
_LAST_PART = 1 / 3
# Quiet recordings are amplified for the detector, to this share of the full scale and by at most this factor.
_LOUDNESS, _MAX_GAIN = 0.25, 300.0

_DEFAULT = Detection()

Samples = npt.NDArray[np.int16]
Probabilities = npt.NDArray[np.float32]


class Speech(NamedTuple):
    """A part of a recording in which somebody speaks: from the sample with index `begin` up to, but not including,
    `end`.

    `is_cut` says that it ends within speech, because there is no pause near its end.
    """

    begin: int
    end: int
    # Whether it ends within speech, because there is no pause near its end.
    is_cut: bool


class Silence(NamedTuple):
    """The result of a search for speech that found none, from where it began up to the sample with index `end`."""

    end: int


class FrameScorer(Protocol):
    """Computes the probability of speech for consecutive parts of one recording. It may keep state from part to part.

    DetectorState implements this interface with a model.
    """

    def probabilities(self, samples: Samples) -> Probabilities:
        """Return the probability of speech for each frame of 512 samples in the next part of the recording, `samples`.

        The last frame is padded with silence if it is shorter.
        """
        ...


class Detector:
    """Silero's voice activity detection model, loaded with ONNX Runtime. One object serves all searches.

    `start` returns the object that computes the probabilities of speech for one search.
    """

    def __init__(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(_MODEL), options, providers=["CPUExecutionProvider"])

    def start(self, peak: int) -> "DetectorState":
        """Return a new object that computes the probabilities of speech for one search in a recording.

        `peak` is the peak amplitude of the whole recording (at most 32768); quiet recordings are amplified accordingly.
        """
        gain = min(max(_LOUDNESS * 32768 / max(peak, 1), 1.0), _MAX_GAIN)
        return DetectorState(self._session.run, gain / 32768)


class DetectorState:
    """Computes the probabilities of speech for one search in a recording, with Silero's model, whose recurrent state it
    keeps from call to call. `Detector.start` creates it.

    `run` runs the model, and `scale` is the factor by which samples are multiplied before.
    """

    def __init__(self, run: Callable[..., list[npt.NDArray[np.float32]]], scale: float) -> None:
        self._run = run
        self._scale = scale
        self._hidden = np.zeros(_STATE, np.float32)
        self._cell = np.zeros(_STATE, np.float32)
        self._before = np.zeros(_CONTEXT, np.float32)

    def probabilities(self, samples: Samples) -> Probabilities:
        """Return the probability of speech for each frame of 512 samples in the next part of the recording, `samples`.

        The last frame is padded with silence if it is shorter.
        """
        frames = np.zeros((-(-len(samples) // _FRAME), _CONTEXT + _FRAME), np.float32)
        new_samples = np.zeros((len(frames), _FRAME), np.float32)
        new_samples.reshape(-1)[: len(samples)] = samples
        new_samples *= self._scale
        frames[:, _CONTEXT:] = new_samples
        frames[0, :_CONTEXT] = self._before
        frames[1:, :_CONTEXT] = new_samples[:-1, -_CONTEXT:]
        self._before = new_samples[-1, -_CONTEXT:]
        inputs = {"input": frames, "h": self._hidden, "c": self._cell}
        scores, self._hidden, self._cell = self._run(["speech_probs", "hn", "cn"], inputs)
        return scores.reshape(-1)


def find_speech(
    scorer: FrameScorer,
    samples: Samples,
    start: int,
    limit: int,
    max_silence: int,
    detection: Detection = _DEFAULT,
) -> Speech | Silence:
    """Return the next part of a recording with speech, from the sample with index `start` on.

    `samples` are those of the whole recording, and `scorer` computes the probabilities of speech. The part is at most
    `limit` samples long, begins shortly before the first speech, and ends in a pause if there is one near the limit.
    Silence is returned after about `max_silence` samples without speech, or at the recording's end. `detection` has
    further options.
    """
    origin = max(0, start - _WARM_UP_FRAMES * _FRAME)
    first_frame = (start - origin) // _FRAME
    scores = np.zeros(0, np.float32)
    first: int | None = None
    # Number of frames to look at.
    num_frames = first_frame + -(-max_silence // _FRAME)
    while len(scores) < num_frames and (at := origin + len(scores) * _FRAME) < len(samples):
        scored = scorer.probabilities(samples[at : at + _BLOCK * _FRAME])
        if not len(scores):
            scored[:first_frame] = 0
        scores = np.append(scores, scored)
        if first is None and (first := _first_speech(scores, detection.threshold)) is not None:
            num_frames = first + -(-(limit + 2 * _PAD) // _FRAME)
    if first is None:
        end = origin + len(scores) * _FRAME
        # Speech may begin in the last frames, or just after them.
        return Silence(len(samples) if end >= len(samples) else end - _FRAMES_OF_SPEECH * _FRAME - detection.padding)
    part_start = max(start, origin + first * _FRAME - detection.padding)
    end = min(len(samples), part_start + limit)
    pauses = [(origin + a * _FRAME, origin + b * _FRAME) for a, b in _runs(scores < detection.threshold)]
    pauses = [pause for pause in pauses if part_start < pause[1] and pause[0] < end]
    return Speech(part_start, *_end(pauses, part_start, end, len(samples), detection.pause))


def _first_speech(scores: Probabilities, threshold: float) -> int | None:
    """Return the index of the first frame with speech; None if there is none.

    `scores` are the probabilities of speech of consecutive frames. Several frames in a row must reach `threshold`, or
    one frame a higher probability.
    """
    for first, end in _runs(scores >= threshold):
        if end - first >= _FRAMES_OF_SPEECH or scores[first:end].max() >= max(_SURE, threshold):
            return first
    return None


def _end(pauses: list[tuple[int, int]], start: int, end: int, num_samples: int, min_pause: int) -> tuple[int, bool]:
    """Choose where a part of a recording with speech ends, preferably in a pause.

    Returns the index of the sample after its end, and whether it then ends within speech. The part begins at sample
    `start` and may extend to `end`; the recording has `num_samples` samples. `pauses` are the pauses in the part, each
    as its first sample and the one after its last. A pause must have at least `min_pause` samples; if `min_pause` is 0,
    longer pauses are preferred to shorter ones.
    """
    if pauses and pauses[-1][1] >= end:
        silent_from = pauses[-1][0]
        return min(silent_from + _PAD, end), end < num_samples and end - silent_from < _PAUSE * _FRAME
    if end == num_samples:
        return end, False
    near = [
        (a, b) for a, b in pauses if a >= end - _LAST_PART * (end - start) and b - a >= (min_pause or _PAUSE * _FRAME)
    ]
    if not near:
        return end, True
    long = [(a, b) for a, b in near if b - a >= (min_pause or _LONG_PAUSE * _FRAME)]
    a, b = long[-1] if long else max(near, key=lambda pause: pause[1] - pause[0])
    return min(a + _PAD, (a + b) // 2), False


def _runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the runs of true values in a mask, each as the index of its first value and the index after its last."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
