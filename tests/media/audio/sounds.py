"""Recordings of all formats, made in memory."""

import io
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from genai_server.media.audio.decoding import decode

RATE = 16_000
# "The quick brown fox jumps over the lazy dog", spoken by espeak-ng (espeak-ng -v en-us -s 150).
_SENTENCE = Path(__file__).with_name("sentence.ogg")

Samples = npt.NDArray[np.int16]


@cache
def sentence() -> Samples:
    """Three seconds of speech without a pause."""
    data, found = _SENTENCE.read_bytes(), io.BytesIO()
    decode(io.BytesIO(data), found, len(data), 60)
    return np.frombuffer(found.getvalue(), np.int16)


def silence(seconds: float) -> Samples:
    """Digital silence."""
    return np.zeros(round(seconds * RATE), np.int16)


def tone(seconds: float, rate: int = RATE) -> Samples:
    """A sound that is no speech."""
    return (9000 * np.sin(2 * np.pi * 440 * np.arange(round(seconds * rate)) / rate)).astype(np.int16)


def encoded(
    samples: Samples,
    format: str = "wav",
    codec: str = "pcm_s16le",
    rate: int = RATE,
    layout: str = "mono",
    **options: str,
) -> bytes:
    """Samples as a file. They have the rate, and are the same in all channels."""
    file = io.BytesIO()
    with av.open(file, "w", format=format) as container:
        stream: Any = container.add_stream(codec, rate=rate, options={"strict": "experimental", **options})
        stream.layout = layout
        packed = np.repeat(samples, stream.codec_context.channels).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="s16", layout=layout)
        frame.sample_rate = rate
        size = stream.codec_context.frame_size or None
        resampler = av.AudioResampler(stream.format, stream.layout, rate, size)
        for part in (*resampler.resample(frame), *resampler.resample(None)) if len(samples) else ():
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return file.getvalue()
