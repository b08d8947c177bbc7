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
from contextlib import closing, suppress
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
from .files import damaged, refusal

_MODEL = REPOSITORY / "tests" / "built_models" / "whisper"
_RECORDING = REPOSITORY / "tests" / "recordings" / "book.wav"
_FIELD = "file"
_REQUESTER = Requester(TaskOwner())
# Windows of a recording.
_WINDOWS = 3
# Codecs by format.
_CODECS = {
    "flac": "flac",
    "mp3": "libmp3lame",
    "mp4": "aac",
    "ipod": "alac",
    "mov": "pcm_s16le",
    "mpeg": "mp2 ac3",
    "mp2": "mp2",
    "ogg": "libopus vorbis flac",
    "wav": "pcm_s16le pcm_u8 pcm_f32le pcm_mulaw adpcm_ima_wav adpcm_ms",
    "w64": "pcm_s24le",
    "webm": "libopus vorbis",
    "matroska": "ac3",
    "adts": "aac",
    "3gp": "libopencore_amrnb",
}
_KINDS = [(format, codec) for format, codecs in _CODECS.items() for codec in codecs.split()]
# Not every encoder takes every rate and layout.
_RATES = (16_000, 44_100, 48_000, 96_000)
_LAYOUTS = ("mono", "stereo", "5.1")
# Of containers that also take pictures: the codec of the sound, or none, and that of the pictures.
_PICTURED = (("mp4", "matroska", "mpeg", "mov"), ("", "aac", "mp2"), ("mjpeg", "mpeg4", "mpeg1video"))
_BEGINNINGS = (
    *(
        b"",
        b"ID3\x03\0\0\x7f\x7f\x7f\x7f",
        b"\xff\xfb\x90\x00",
        b"\xff\xf1\x50\x80",
        b"fLaC",
        b"OggS\0\x02" + bytes(20),
    ),
    *(b"RIFF\xff\xff\xff\xffWAVE", b"\0\0\0\x20ftypM4A ", b"\x1a\x45\xdf\xa3", b"\0\0\x01\xba\x44", b"PK\x03\x04"),
    *(b"%PDF-1.7", b"Hello, this is a text. " * 50),
    # Lists of other files.
    b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:9,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
    b"ffconcat version 1.0\nfile /etc/hostname\n",
    b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    b'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><BaseURL>file:///etc/hostname'
    b"</BaseURL></Period></MPD>",
    b"[playlist]\nFile1=/etc/hostname\n",
    b"rtsp://127.0.0.1/",
)
# Each such file is a long recording of so many seconds, once or repeated; the others are short for the sake of time.
_EVERY, _LONG = 1000, 400


def hostile_recording(seed: int, number: int) -> tuple[str, bytes]:
    """What the file is, and its bytes."""
    chance = random.Random(f"{seed} {number}")
    if number % _EVERY == _EVERY - 1:  # within the limit or not, in few bytes
        format, codec = chance.choice((("flac", "flac"), ("mp3", "libmp3lame"), ("ogg", "libopus")))
        return "long", _encoded(format, codec, 48_000, "mono", _LONG) * chance.choice((1, 10, 30))
    return damaged(chance, _seeds(), _BEGINNINGS)


@cache
def _seeds() -> list[bytes]:
    """Intact files of all formats, rates and layouts, and files that have a picture or a video next to sound, or
    without sound.
    """
    chance = random.Random(0)
    sounds = [
        _encoded(*kind, rate, layout, chance.choice((0, 0.001, 0.1, 0.5, 1, 3)))
        for kind, layout in itertools.product(_KINDS, _LAYOUTS)
        for rate in (8000, chance.choice(_RATES))
    ]
    pictured = [
        _encoded(format, sound, 48_000, "mono", 0.2, picture)
        for format, sound, picture in itertools.product(*_PICTURED)
    ]
    return [file for file in (*sounds, *pictured) if file]


def _encoded(format: str, sound: str, rate: int, layout: str, seconds: float, picture: str = "") -> bytes:
    """An intact file of sound, of three pictures, or of both; without bytes if the encoders do not take the form."""
    file = BytesIO()
    with suppress(av.FFmpegError, ValueError):
        with av.open(file, "w", format=format) as container:
            sounds: Any = container.add_stream(sound, rate=rate, options={"strict": "experimental"}) if sound else None
            if sounds:
                sounds.layout = layout
            if picture:
                pictures: Any = container.add_stream(picture, rate=25)
                pictures.width, pictures.height = 64, 64
                pictures.pix_fmt = "yuvj420p" if picture == "mjpeg" else "yuv420p"
                for _ in range(3):
                    container.mux(pictures.encode(av.VideoFrame(64, 64, pictures.pix_fmt)))
                container.mux(pictures.encode(None))
            if sounds:
                # The encoder of Vorbis hangs without samples.
                _add_sound(container, sounds, _speech(rate, max(seconds, 0.1) if sound == "vorbis" else seconds))
        return file.getvalue()
    return b""


def _speech(rate: int, seconds: float) -> NDArray[np.int16]:
    """Samples of speech, after whose end it begins again: parts without speech would not be read."""
    with wave.open(str(_RECORDING)) as file:
        samples, own_rate = np.frombuffer(file.readframes(file.getnframes()), np.int16), file.getframerate()
    times = np.arange(round(rate * seconds)) * own_rate / rate
    said: NDArray[np.int16] = np.interp(times, np.arange(len(samples)), samples, period=len(samples)).astype(np.int16)
    return said


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


def run(arguments: argparse.Namespace, numbers: range) -> Campaign:
    """Send the recordings with these numbers."""
    found = Campaign(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_send(found, numbers, Path(folder)))
        # A process that is ended while it starts leaves others, which the server removes with its own folder.
        left = [path for path in Path(folder).rglob("*") if path.suffix in (".pcm", ".npz")]
    found.broken += [f"{path} is left" for path in left]
    return found


async def _send(found: Campaign, numbers: range, folder: Path) -> None:
    model, settings = read_speech_model(_MODEL), Settings.model_validate({})
    assert model is not None
    with (
        closing(WorkerPool(WorkerLimits.of(settings))) as pool,
        closing(Recordings(pool, settings, folder)) as recordings,
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

        await found.run(numbers, attempt)
