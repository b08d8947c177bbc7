"""Gives the readers of recordings damaged and odd files: cut, changed, chained, of other types, with absurd headers.

Each of them must be decoded and read, or refused with an error that names its field. No process may die, and no file
may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import struct
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
from _load.server import REPOSITORY

from genai_server.config.settings import Settings
from genai_server.errors import InvalidField
from genai_server.media.audio.recordings import Recordings
from genai_server.messages.supervisor_protocol import TaskOwner
from genai_server.model_files.speech_and_vision import read_speech_model
from genai_server.workers.pool import WorkerLimits, WorkerPool
from genai_server.workers.tasks import Requester

from .campaign import Campaign, Outcome
from .files import CLIENTS, SIZES, add_counts, changed, cut, refusal

_MODEL = REPOSITORY / "tests" / "built_models" / "whisper"
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
_RATES = (0, 1, 999, 1000, 8000, 16_000, 44_100, 768_000, 768_001, 2**31 - 1, 2**32 - 1)
_CHANNELS = (0, 1, 2, 3, 8, 9, 16, 64, 65, 255, 1024, 65_535)
_BITS = (0, 1, 4, 8, 12, 16, 24, 32, 64, 65_535)
_TAGS = (0, 1, 2, 3, 6, 7, 0x11, 0x31, 0x50, 0x55, 0xFF, 0x161, 0x2000, 0xFFFE, 0xFFFF)
_BEGINS = (
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
    "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:9,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n",
    "ffconcat version 1.0\nfile /etc/hostname\n",
    "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><BaseURL>file:///etc/hostname'
    "</BaseURL></Period></MPD>",
    "[playlist]\nFile1=/etc/hostname\n",
    "rtsp://127.0.0.1/",
    "Hello, this is a text. " * 50,
)
# Seconds of the sounds, most of which are short for the sake of time.
_LONG = 400


def hostile_recording(seed: int, number: int) -> tuple[str, bytes]:
    """What the file is, and its bytes. Each thousandth is long."""
    chance = random.Random(f"{seed} {number}")
    name, make = _RARE if number % _EVERY == _EVERY - 1 else chance.choice(_SORTS)
    return name, make(chance)


@cache
def _encoded(kind: int, rate: int, layout: str, seconds: float, seed: int) -> bytes:
    """An intact file; without sound if the encoder does not take the form."""
    format, codec, _ = _KINDS[kind]
    count = round((max(seconds, 0.1) if codec == "vorbis" else seconds) * rate)  # its encoder hangs without samples
    noise = np.random.default_rng(seed).standard_normal(count) * (np.arange(count) // (rate // 3 + 1) % 2)
    file = BytesIO()
    try:
        with av.open(file, "w", format=format) as container:
            stream: Any = container.add_stream(codec, rate=rate, options={"strict": "experimental"})
            stream.layout = layout
            packed = np.repeat((noise * 3000).astype(np.int16), stream.codec_context.channels).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(packed, format="s16", layout=layout)
            frame.sample_rate = rate
            resampler = av.AudioResampler(stream.format, stream.layout, rate, stream.codec_context.frame_size or None)
            for part in (*resampler.resample(frame), *resampler.resample(None)) if count else ():
                container.mux(stream.encode(part))
            container.mux(stream.encode(None))
    except (av.FFmpegError, ValueError):
        return b""
    return file.getvalue()


def _file(chance: random.Random) -> bytes:
    """An intact file of any format."""
    kind = chance.randrange(len(_KINDS))
    rate, layout = chance.choice(_KINDS[kind][2]), chance.choice(_LAYOUTS)
    found = _encoded(kind, rate, layout, chance.choice((0, 0.001, 0.1, 0.5, 1, 3)), chance.randrange(3))
    return found or _encoded(kind, rate, "mono", 1, 0)


def _chained(chance: random.Random) -> bytes:
    """Files one after the other, of one or of several formats."""
    if chance.random() < 0.5:
        return b"".join(_file(chance) for _ in range(chance.choice((2, 3, 10))))
    kind = chance.randrange(len(_KINDS))
    rates = _KINDS[kind][2]
    parts = (
        _encoded(kind, chance.choice(rates), chance.choice(_LAYOUTS), 0.5, 0) for _ in range(chance.randint(2, 30))
    )
    return b"".join(parts)


def _claimed(chance: random.Random) -> bytes:
    """A WAV, FLAC or MP4 header that claims something, with some bytes of sound or none."""
    data = chance.randbytes(chance.choice((0, 1, 100, 20_000)))
    rate, channels, size = chance.choice(_RATES), chance.choice(_CHANNELS), chance.choice((*SIZES, len(data)))
    match chance.randrange(4):
        case 0:
            tag, bits = chance.choice(_TAGS), chance.choice(_BITS)
            block = chance.choice((channels * bits // 8, *SIZES)) & 0xFFFF
            form = struct.pack("<HHIIHH", tag, channels, rate, rate * block & 0xFFFFFFFF, block, bits)
            form += chance.choice((b"", struct.pack("<H", 22) + chance.randbytes(22), chance.randbytes(50)))
            riff = chance.choice((b"RIFF", b"RF64", b"RIFX"))
            return (
                riff
                + b"\xff\xff\xff\xffWAVEfmt "
                + struct.pack("<I", len(form))
                + form
                + b"data"
                + struct.pack("<I", size)
                + data
            )
        case 1:
            bits = (
                (rate & 0xFFFFF) << 44 | (channels - 1 & 7) << 41 | chance.randrange(32) << 36 | chance.getrandbits(36)
            )
            info = struct.pack(">HH", chance.choice((0, 16, 4096, 65_535)), 65_535) + chance.randbytes(6)
            return b"fLaC\x80\0\0\x22" + info + struct.pack(">Q", bits) + bytes(16) + data
        case 2:
            whole = bytearray(_encoded(2, 44_100, "stereo", 1, 0))
            for name in (b"stts", b"stsz", b"stsc", b"stco", b"mvhd", b"mdhd", b"mp4a", b"esds"):
                place = whole.find(name) + 4 * chance.randint(1, 6)
                if chance.random() < 0.4:
                    whole[place : place + 4] = struct.pack(">I", chance.choice(SIZES))
            return bytes(whole)
        case _:
            return b"ID3\x04\0\0" + bytes(chance.randrange(128) for _ in range(4)) + data + _file(chance)


def _pictured(chance: random.Random) -> bytes:
    """A file with a picture or a video next to the sound, or without sound."""
    file = BytesIO()
    try:
        with av.open(file, "w", format=chance.choice(("mp4", "matroska", "mpeg", "mov"))) as container:
            streams: list[Any] = []
            if chance.random() < 0.8:
                streams.append(container.add_stream(chance.choice(("aac", "mp2", "ac3")), rate=48_000))
                streams[0].layout = "mono"
            picture: Any = container.add_stream(chance.choice(("mjpeg", "mpeg4", "mpeg1video", "png")), rate=25)
            picture.width, picture.height = 64, 64
            picture.pix_fmt = {"mjpeg": "yuvj420p", "png": "rgb24"}.get(picture.codec_context.name, "yuv420p")
            for _ in range(3):
                container.mux(picture.encode(av.VideoFrame(64, 64, picture.pix_fmt)))
            container.mux(picture.encode(None))
            for stream in streams:
                samples = np.zeros((1, 10 * (stream.codec_context.frame_size or 1024)), np.float32)
                frame = av.AudioFrame.from_ndarray(samples, "fltp", "mono")
                frame.sample_rate = 48_000
                resampler = av.AudioResampler(stream.format, "mono", 48_000, stream.codec_context.frame_size or None)
                for part in (*resampler.resample(frame), *resampler.resample(None)):
                    container.mux(stream.encode(part))
                container.mux(stream.encode(None))
    except (av.FFmpegError, ValueError):
        pass  # not every format takes every codec
    data = file.getvalue()
    return changed(chance, data) if chance.random() < 0.5 else data


def _other(chance: random.Random) -> bytes:
    return chance.choice(_BEGINS) + chance.randbytes(chance.choice((0, 1, 10, 1000, 50_000)))


def _list(chance: random.Random) -> bytes:
    return chance.choice(_LISTS).encode()


def _long(chance: random.Random) -> bytes:
    """A long recording in few bytes, within the limit or not."""
    count = chance.choice((1, 10, 30))
    return _encoded(chance.choice((0, 1, 8)), 8000 if count == 30 else 48_000, "mono", _LONG, 0) * count


_SORTS: list[tuple[str, Callable[[random.Random], bytes]]] = [
    *[("intact", _file)] * 3,
    *[("cut", lambda chance: cut(chance, _file(chance)))] * 3,
    *[("changed", lambda chance: changed(chance, _file(chance)))] * 8,
    *[("chained", _chained)] * 2,
    *[("chained, changed", lambda chance: changed(chance, _chained(chance)))] * 2,
    *[("header claimed", _claimed)] * 4,
    *[("with pictures", _pictured)] * 2,
    *[("no recording", _other)] * 2,
    ("list or text", _list),
]
_RARE = ("long", _long)
_EVERY = 1000


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
