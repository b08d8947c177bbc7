"""Sends damaged and odd images: cut, changed, chained, of other types, with absurd headers, with many pixels.

Each is sent in the form of one of four APIs, and must be answered, or refused with an error that names its field. No
process may die, and /healthz must answer all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import random
import struct
import tempfile
import zlib
from contextlib import suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from _load.http import JSON, ask
from _load.pulse import LONGEST_PULSE, pulse
from _load.server import REPOSITORY, Server, run_server
from PIL import Image

from .campaign import Campaign, Outcome
from .corpus import IMAGES
from .files import damaged, refusal

_SETTINGS = {
    "GENAI_MODEL_DIR": str(REPOSITORY / "tests" / "built_models" / "qwen-3-vl-images"),
    # Each image is read and encoded.
    "GENAI_ENCODER_CACHE_BYTES": "0",
}
# Formats that are read, several times for more files of them, and others.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP") * 4 + ("TIFF", "ICO", "PPM", "JPEG2000", "AVIF", "MPO", "TGA", "SGI")
_MODES = ("RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16", "YCbCr")
_PNG = b"\x89PNG\r\n\x1a\n"
_BEGINNINGS = (
    *(b"", _PNG, b"\xff\xd8\xff\xe0", b"GIF89a", b"BM", b"RIFF\xff\xff\xff\x7fWEBPVP8X", b"PK\x03\x04", b"<svg>"),
)
_ORIENTATION = 0x0112
# Each such file has many pixels, which takes seconds.
_EVERY = 1000


def hostile_image(seed: int, number: int) -> tuple[str, bytes]:
    """What the file is, and its bytes."""
    chance = random.Random(f"{seed} {number}")
    if number % _EVERY == _EVERY - 1:
        return "of many pixels", _large(chance)
    kind, data = damaged(chance, _seeds(), _BEGINNINGS)
    if data.startswith(_PNG) and chance.random() < 0.7:  # else most changes of a PNG file are found by a checksum
        return f"{kind}, checksums right", _with_checksums(data)
    return kind, data


@cache
def _seeds() -> list[bytes]:
    """Intact files of all formats and modes; some have an orientation, or several pictures."""
    chance = random.Random(0)
    files = []
    for format, mode in itertools.product(_FORMATS, _MODES):
        options: dict[str, Any] = {}
        if chance.random() < 0.3:
            exif = Image.Exif()
            exif[_ORIENTATION] = chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 65535))
            options["exif"] = exif
        if chance.random() < 0.2:
            options |= {"save_all": True, "append_images": [_image(chance, mode) for _ in range(3)]}
        file = BytesIO()
        with suppress(Exception):  # not every format has every mode and option
            _image(chance, mode).save(file, format, **options)
            files.append(file.getvalue())
    return files


def _image(chance: random.Random, mode: str) -> Image.Image:
    width, height = (chance.choice((1, 2, 3, 8, 17, 64, 100, chance.randint(1, 400))) for _ in range(2))
    noise = np.random.default_rng(chance.getrandbits(32)).integers(0, 256, (height, width, 3), np.uint8)
    if mode == "I;16":
        return Image.fromarray(noise[:, :, 0].astype(np.uint16) * 257)
    return Image.fromarray(noise if chance.random() < 0.5 else noise // 128 * 255).convert(mode)


def _with_checksums(data: bytes) -> bytes:
    """A PNG file with the right checksum behind each of its chunks, as far as these can be told apart."""
    found, at = bytearray(data), len(_PNG)
    while at + 12 <= len(found):
        end = at + 8 + int.from_bytes(found[at : at + 4], "big")
        found[end : end + 4] = struct.pack(">I", zlib.crc32(found[at + 4 : end]))
        at = end + 4
    return bytes(found)


def _large(chance: random.Random) -> bytes:
    """A small file of many pixels, within the limit or not."""
    file = BytesIO()
    side = chance.choice((3000, 5000, 7000, 7100, 12_000))
    Image.new("1", (side, side)).save(file, chance.choice(("PNG", "GIF")))
    return file.getvalue()


def run(arguments: argparse.Namespace, numbers: range) -> Campaign:
    """Send the images with these numbers."""
    found = Campaign(arguments.seed)
    longest = arguments.slack * LONGEST_PULSE
    with (
        tempfile.TemporaryDirectory() as folder,
        run_server(Path(folder), _SETTINGS) as server,
        pulse(server.port) as beats,
    ):
        asyncio.run(_send(server, found, numbers))
        beats.look()
        found.figures.append(["slowest /healthz", f"{beats.slowest():.3f} s, failed {beats.failed} times"])
        if beats.failed or beats.slowest() > longest:
            found.broken.append(f"/healthz must answer within {longest:g} s")
    return found


async def _send(server: Server, found: Campaign, numbers: range) -> None:
    async def attempt(number: int) -> Outcome:
        kind, data = await asyncio.to_thread(hostile_image, found.seed, number)
        form = IMAGES[number % len(IMAGES)]
        field = form["field"]
        body = json.dumps(form["body"]).replace("$detail", "low" if number % 3 == 0 else "auto")
        body = body.replace("$data", base64.b64encode(data).decode())
        response = await ask(server.port, "POST", form["path"], body.encode(), JSON)
        if response.status == 200:
            return Outcome(kind, "answered")
        error = response.json()["error"]
        message, param = (error, field) if isinstance(error, str) else (error["message"], error.get("param", field))
        result, complaint = refusal(message, field, "image")
        if response.status != 400 or param != field:
            complaint = f"{response.status}: {param}: {message}"
        return Outcome(kind, result, complaint)

    before = server.api_pids(), server.engine_pid()
    await found.run(numbers, attempt)
    if (after := (server.api_pids(), server.engine_pid())) != before:
        found.broken.append(f"the processes were {before} and are {after}")
