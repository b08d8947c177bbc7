"""Gives the readers of recordings damaged and odd files: cut, changed, chained, of other types, with absurd headers.

Each of them must be decoded and read, or refused with an error that names its field. No process may die, and no file
may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import tempfile
import wave
from collections import Counter
from contextlib import closing
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
from _load.server import REPOSITORY
from numpy.typing import NDArray

from genai_server.config.settings import Settings
from genai_server.errors import InvalidField
from genai_server.media.audio.recordings import Recordings
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.model_files.speech_and_vision import read_speech_model
from genai_server.workers.pool import WorkerLimits, WorkerPool
from genai_server.workers.tasks import Requester

from .campaign import Campaign, Outcome
from .files import CLIENTS, add_counts, damaged, refusal

_MODEL = REPOSITORY / "tests" / "built_models" / "whisper"
_RECORDING = REPOSITORY / "tests" / "recordings" / "book.wav"
_FIELD = "file"
_REQUESTER = Requester(TaskOwner())
# Windows of a recording.
_WINDOWS = 3
# Format, codec and rates.
_KINDS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("flac", "flac", (8000, 44_100, 96_000)),
    ("mp3", "libmp3lame", (8000, 22_050, 44_100, 48_000)),
    ("mp4", "aac", (8000, 44_100, 96_000)),
    ("ipod", "alac", (16_000, 48_000)),
    ("mov", "pcm_s16le", (16_000,)),
    ("mpeg", "mp2", (44_100, 48_000)),
    ("mpeg", "ac3", (48_000,)),
    ("mp2", "mp2", (16_000, 44_100)),
    ("ogg", "libopus", (16_000, 48_000)),
    ("ogg", "vorbis", (44_100,)),
    ("ogg", "flac", (44_100,)),
    ("wav", "pcm_s16le", (8000, 16_000, 44_100)),
    ("wav", "pcm_u8", (8000,)),
    ("wav", "pcm_f32le", (96_000,)),
    ("wav", "pcm_mulaw", (8000,)),
    ("wav", "adpcm_ima_wav", (16_000,)),
    ("wav", "adpcm_ms", (16_000,)),
    ("w64", "pcm_s24le", (48_000,)),
    ("webm", "libopus", (48_000,)),
    ("webm", "vorbis", (44_100,)),
    ("matroska", "ac3", (48_000,)),
    ("adts", "aac", (44_100,)),
    ("3gp", "libopencore_amrnb", (8000,)),
)
_LAYOUTS = ("mono", "stereo", "5.1")
_BEGINNINGS = (
    b"",
    b"ID3\x03\0\0\x7f\x7f\x7f\x7f",
    b"\xff\xfb\x90\x00",
    b"\xff\xf1\x50\x80",
    b"fLaC",
    b"OggS\0\x02" + bytes(20),
    b"RIFF\xff\xff\xff\xffWAVE",
    b"\0\0\0\x20ftypM4A ",
    b"\x1a\x45\xdf\xa3",
    b"\0\0\x01\xba\x44",
    b"PK\x03\x04",
    b"%PDF-1.7",
)
_LISTS = (
    b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:9,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
    b"ffconcat version 1.0\nfile /etc/hostname\n",
    b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><BaseURL>file:///etc/hostname'
    b"</BaseURL></Period></MPD>",
    b"[playlist]\nFile1=/etc/hostname\n",
    b"rtsp://127.0.0.1/",
    b"Hello, this is a text. " * 50,
)
# Of containers that also take pictures: the codec of the sound, or none, and that of the pictures.
_PICTURED = tuple(
    itertools.product(("mp4", "matroska", "mpeg", "mov"), ("", "aac", "mp2"), ("mjpeg", "mpeg4", "mpeg1video"))
)
# Each such file is a long recording of so many seconds; the others are short for the sake of time.
_EVERY, _LONG = 1000, 400


def hostile_recording(seed: int, number: int) -> tuple[str, bytes]:
    """What the file is, and its bytes."""
    chance = random.Random(f"{seed} {number}")
    if number % _EVERY == _EVERY - 1:  # within the limit or not, in few bytes
        count = chance.choice((1, 10, 30))
        format, codec, _ = _KINDS[chance.choice((0, 1, 8))]
        return "long", _encoded(format, codec, 8000 if count == 30 else 48_000, "mono", _LONG) * count
    return damaged(chance, _seeds(), (*_BEGINNINGS, *_LISTS))


@cache
def _seeds() -> list[bytes]:
    """Intact files of all formats, rates and layouts, and files that have a picture or a video next to sound, or
    without sound.
    """
    chance = random.Random(0)
    sounds = [
        _encoded(format, codec, rate, layout, chance.choice((0.001, 0.1, 0.5, 1, 3)))
        for format, codec, rates in _KINDS
        for rate in rates
        for layout in _LAYOUTS
    ]
    silent = [_encoded(format, codec, rates[0], "mono", 0) for format, codec, rates in _KINDS]
    pictured = [_with_pictures(*each) for each in _PICTURED]
    return [file for file in (*sounds, *silent, *pictured) if file]


def _encoded(format: str, codec: str, rate: int, layout: str, seconds: float) -> bytes:
    """An intact file; without bytes if the encoder does not take the form."""
    count = round((max(seconds, 0.1) if codec == "vorbis" else seconds) * rate)  # its encoder hangs without samples
    file = BytesIO()
    try:
        with av.open(file, "w", format=format) as container:
            stream: Any = container.add_stream(codec, rate=rate, options={"strict": "experimental"})
            stream.layout = layout
            _add_sound(container, stream, _speech(np.arange(count) / rate))
    except (av.FFmpegError, ValueError):
        return b""
    return file.getvalue()


def _speech(seconds: NDArray[np.float64]) -> NDArray[np.int16]:
    """Samples of speech at these times, after whose end it begins again: parts without speech would not be read."""
    with wave.open(str(_RECORDING)) as file:
        samples, rate = np.frombuffer(file.readframes(file.getnframes()), np.int16), file.getframerate()
    times = np.arange(len(samples)) / rate
    return np.interp(seconds, times, samples, period=len(samples) / rate).astype(np.int16)


def _add_sound(container: Any, stream: Any, samples: NDArray[np.int16]) -> None:
    """The samples on all channels of the stream."""
    codec = stream.codec_context
    if len(samples):
        packed = np.repeat(samples, codec.channels).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="s16", layout=codec.layout.name)
        frame.sample_rate = codec.sample_rate
        resampler = av.AudioResampler(stream.format, codec.layout, codec.sample_rate, codec.frame_size or None)
        for part in (*resampler.resample(frame), *resampler.resample(None)):
            container.mux(stream.encode(part))
    container.mux(stream.encode(None))


def _with_pictures(format: str, sound: str, codec: str) -> bytes:
    """A file of three pictures, and some sound; without bytes if the format does not take the codecs."""
    file = BytesIO()
    try:
        with av.open(file, "w", format=format) as container:
            stream: Any = container.add_stream(sound, rate=48_000, layout="mono") if sound else None
            picture: Any = container.add_stream(codec, rate=25)
            picture.width, picture.height = 64, 64
            picture.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
            for _ in range(3):
                container.mux(picture.encode(av.VideoFrame(64, 64, picture.pix_fmt)))
            container.mux(picture.encode(None))
            if stream is not None:
                _add_sound(container, stream, np.zeros(9600, np.int16))
    except (av.FFmpegError, ValueError):
        return b""
    return file.getvalue()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This target has no arguments of its own."""


def run(arguments: argparse.Namespace, numbers: range) -> Campaign:
    """Send the recordings with these numbers."""
    found = Campaign(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_send(found, numbers, Path(folder)))
    return found


async def _send(found: Campaign, numbers: range, folder: Path) -> None:
    model, settings = read_speech_model(_MODEL), Settings.model_validate({})
    assert model is not None
    counted: Counter[str] = Counter()

    def count(result: str) -> None:
        counted[result] += 1

    with (
        closing(WorkerPool(WorkerLimits.of(settings))) as pool,
        closing(Recordings(pool, settings, folder, count)) as recordings,
    ):

        async def attempt(number: int) -> Outcome:
            kind, data = await asyncio.to_thread(hostile_recording, found.seed, number)
            file = folder / f"upload-{number}"
            await asyncio.to_thread(file.write_bytes, data)
            at, num_windows = 0.0, 0
            try:
                with await recordings.open(model, file, _REQUESTER, param=_FIELD) as recording:
                    while num_windows < _WINDOWS and (window := await recording.window(at)):
                        if not at <= window.start < window.end <= recording.duration or not window.path.stat().st_size:
                            return Outcome(kind, "decoded", f"{window} from {at} on")
                        at, num_windows = window.end, num_windows + 1
                        del window
            except InvalidField as error:
                result, complaint = refusal(error.message, _FIELD, "recording")
                return Outcome(kind, result, error.message if error.param != _FIELD else complaint)
            return Outcome(kind, f"decoded, windows: {num_windows}")

        await found.run(numbers, attempt, CLIENTS)
        left = await asyncio.to_thread(_files, folder)
    found.broken += [f"{path} is left" for path in left]
    add_counts(found, counted)


def _files(folder: Path) -> list[Path]:
    """Files with samples or features of recordings. A process that is ended while it starts leaves others, which the
    server removes with its own folder.
    """
    return [path for path in folder.rglob("*") if path.suffix in (".pcm", ".npz")]
