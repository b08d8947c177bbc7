"""Sends damaged and odd images: cut, changed, of other types, with wrong sizes, with many pixels.

Each is sent in the form of one of four APIs, and must be answered, or refused with an error that names its field. No
process may die, and /healthz must answer all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import re
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from _load.http import ask, ask_json
from _load.pulse import LONGEST_PULSE, pulse
from _load.server import REPOSITORY, Server, run_server
from PIL import Image

from .campaign import Campaign, Outcome
from .files import CLIENTS, EDGES, SIZES, add_counts, changed, cut, refusal

_SETTINGS = {
    "GENAI_MODEL_DIR": str(REPOSITORY / "tests" / "built_models" / "qwen-3-vl-images"),
    # Each image is read and encoded.
    "GENAI_ENCODER_CACHE_BYTES": "0",
}
_RESULTS = re.compile(r'^genai:images_total\{result="(\w+)"} (\S+)$', re.MULTILINE)
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "ICO", "PPM", "JPEG2000", "AVIF", "MPO", "TGA", "SGI")
_MODES = ("RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16", "YCbCr")
_BEGINS = (
    b"",
    b"\x89PNG\r\n\x1a\n",
    b"\xff\xd8\xff\xe0",
    b"GIF89a",
    b"BM",
    b"RIFF\xff\xff\xff\x7fWEBPVP8X",
    b"PK\x03\x04",
    b"<svg>",
)


def hostile_image(seed: int, number: int) -> tuple[str, bytes]:
    """What the file is, and its bytes. Each thousandth has many pixels, which takes seconds."""
    chance = random.Random(f"{seed} {number}")
    name, make = _RARE if number % _EVERY == _EVERY - 1 else chance.choice(_SORTS)
    return name, make(chance)


def _image(chance: random.Random) -> Image.Image:
    width, height = (chance.choice((1, 2, 3, 8, 17, 64, 100, chance.randint(1, 400))) for _ in range(2))
    noise = np.random.default_rng(chance.getrandbits(32)).integers(0, 256, (height, width, 3), np.uint8)
    image = Image.fromarray(noise if chance.random() < 0.5 else noise // 128 * 255)
    mode = chance.choice(_MODES)
    if mode == "I;16":
        return Image.fromarray(noise[:, :, 0].astype(np.uint16) * 257)
    return image.convert(mode)


def _file(chance: random.Random) -> bytes:
    """An intact file of any format, also of those that are not read."""
    image = _image(chance)
    options: dict[str, Any] = {}
    if chance.random() < 0.3:
        exif = Image.Exif()
        exif[0x0112] = chance.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 65535))
        options["exif"] = exif
    if chance.random() < 0.2 and image.mode != "I;16":
        options |= {"save_all": True, "append_images": [_image(chance).convert(image.mode) for _ in range(3)]}
    for format in (chance.choice(_FORMATS[:5]) if chance.random() < 0.8 else chance.choice(_FORMATS), "PNG"):
        for mode in (image.mode, "RGB"):
            file = BytesIO()
            try:
                image.convert(mode).save(file, format, **options)
            except Exception:  # not every format has every mode and option
                continue
            return file.getvalue()
    return b""


def _mended(chance: random.Random) -> bytes:
    """A PNG file with changed chunks whose checksums are right."""
    file = BytesIO()
    _image(chance).convert(chance.choice(("RGB", "L", "P", "RGBA"))).save(file, "PNG")
    data, at, parts = file.getvalue(), 8, [file.getvalue()[:8]]
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, content = data[at + 4 : at + 8], bytearray(data[at + 8 : at + 8 + length])
        if content and chance.random() < 0.6:
            content[chance.randrange(len(content))] = chance.choice(EDGES)
        for _ in range(chance.choice((0, 1, 1, 1, 1, 1, 2))):
            parts.append(struct.pack(">I", len(content)) + name + content)
            parts.append(struct.pack(">I", zlib.crc32(name + content)))
        at += 12 + length
    return b"".join(parts)


def _claimed(chance: random.Random) -> bytes:
    """A PNG, GIF, BMP or WebP header that claims a size, with few pixels or none."""
    width, height = chance.choice(SIZES), chance.choice(SIZES)
    match chance.randrange(4):
        case 0:
            content = zlib.compress(bytes(chance.choice((0, 1, 10_000_000))), 9)
            chunks = (
                (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, chance.choice((0, 2, 3, 6)), 0, 0, 0)),
                (b"IDAT", content),
                (b"IEND", b""),
            )
            parts = (struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks)
            return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
        case 1:
            frame = b"\x2c" + struct.pack("<HHHH", 0, 0, width & 0xFFFF, height & 0xFFFF) + b"\0\x02\x02\x4c\x01\0;"
            return b"GIF89a" + struct.pack("<HH", width & 0xFFFF, height & 0xFFFF) + b"\x80\0\0" + bytes(6) + frame
        case 2:
            info = struct.pack(
                "<IIIHHIIIIII",
                40,
                width,
                height,
                1,
                chance.choice((1, 4, 8, 24, 32)),
                chance.choice((0, 1, 3)),
                0,
                0,
                0,
                0,
                0,
            )
            return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + info + bytes(100)
        case _:
            canvas = (width & 0xFFFFFF).to_bytes(3, "little") + (height & 0xFFFFFF).to_bytes(3, "little")
            body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes((chance.choice((0, 2, 16)), 0, 0, 0)) + canvas
            return b"RIFF" + struct.pack("<I", len(body)) + body


def _other(chance: random.Random) -> bytes:
    return chance.choice(_BEGINS) + chance.randbytes(chance.choice((0, 1, 10, 1000)))


def _large(chance: random.Random) -> bytes:
    """A small file of many pixels, within the limit or not."""
    file = BytesIO()
    side = chance.choice((3000, 5000, 7000, 7100, 12_000))
    Image.new("1", (side, side)).save(file, chance.choice(("PNG", "GIF")))
    return file.getvalue()


_SORTS: list[tuple[str, Callable[[random.Random], bytes]]] = [
    *[("intact", _file)] * 3,
    *[("cut", lambda chance: cut(chance, _file(chance)))] * 3,
    *[("changed", lambda chance: changed(chance, _file(chance)))] * 8,
    *[("changed, checksums right", _mended)] * 3,
    *[("size claimed", _claimed)] * 3,
    *[("no image", _other)] * 2,
]
_RARE = ("many pixels", _large)
_EVERY = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this target."""
    most = f"slowest /healthz that is allowed ({LONGEST_PULSE:g})"
    parser.add_argument("--pulse", type=float, default=LONGEST_PULSE, help=most)


def run(arguments: argparse.Namespace, numbers: range) -> Campaign:
    """Send the images with these numbers."""
    found = Campaign(arguments.seed)
    with (
        tempfile.TemporaryDirectory() as folder,
        run_server(Path(folder), _SETTINGS) as server,
        pulse(server.port) as beats,
    ):
        asyncio.run(_send(server, found, numbers))
        beats.look()
        found.figures.append(["slowest /healthz", f"{beats.slowest():.3f} s, failed {beats.failed} times"])
        if beats.failed or beats.slowest() > arguments.pulse:
            found.broken.append(f"/healthz must answer within {arguments.pulse:g} s")
    return found


async def _send(server: Server, found: Campaign, numbers: range) -> None:
    before = server.api_pids(), server.engine_pid()
    plain = [prompt_tokens((await _asked(server, number, None))[1]) for number in range(4)]

    async def attempt(number: int) -> Outcome:
        kind, data = await asyncio.to_thread(hostile_image, found.seed, number)
        status, answer, field = await _asked(server, number, data)
        if status == 200:
            has_image = prompt_tokens(answer) > plain[number % 4]
            return Outcome(kind, "answered", None if has_image else f"{answer}")
        error = answer["error"]
        message, param = (error, field) if isinstance(error, str) else (error["message"], error.get("param", field))
        result, complaint = refusal(message, field, "image")
        if status != 400 or param != field:
            complaint = f"{status}: {param}: {message}"
        return Outcome(kind, result, complaint)

    await found.run(numbers, attempt, CLIENTS)
    if (after := (server.api_pids(), server.engine_pid())) != before:
        found.broken.append(f"the processes were {before} and are {after}")
    metrics = (await ask(server.port, "GET", "/metrics")).body.decode()
    add_counts(found, Counter({result: int(float(number)) for result, number in _RESULTS.findall(metrics)}))


async def _asked(server: Server, number: int, data: bytes | None) -> tuple[int, dict[str, Any], str]:
    """Status, body and the field of a number's request."""
    path, body, field = request(number, data)
    response = await ask_json(server.port, path, body)
    answer: dict[str, Any] = response.json()
    return response.status, answer, field


def request(number: int, data: bytes | None) -> tuple[str, dict[str, Any], str]:
    """The path and the body of a number's request, and the field that has the image; None sends a text."""
    text = base64.b64encode(data or b"").decode()
    url = f"data:image/png;base64,{text}"
    detail = "low" if number % 3 == 0 else "auto"

    def asked(*parts: dict[str, Any]) -> Sequence[dict[str, Any]]:
        return [{"role": "user", "content": "hi" if data is None else parts}]

    match number % 4:
        case 0:
            part = {"type": "image_url", "image_url": {"url": url, "detail": detail}}
            body = {"messages": asked(part), "max_tokens": 1}
            return "/v1/chat/completions", body, "messages[0].content[0].image_url.url"
        case 1:
            part = {"type": "input_image", "image_url": url, "detail": detail}
            body = {"input": asked(part), "max_output_tokens": 1, "store": False}
            return "/v1/responses", body, "input[0].content[0].image_url"
        case 2:
            part = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": text}}
            return "/v1/messages", {"messages": asked(part), "max_tokens": 1}, "messages[0].content[0].source.data"
    message = {"role": "user", "content": "hi"} if data is None else {"role": "user", "content": "", "images": [text]}
    return "/api/chat", {"messages": [message], "stream": False, "options": {"num_predict": 1}}, "messages[0].images[0]"


def prompt_tokens(answer: dict[str, Any]) -> int:
    """The tokens of the prompt, in the words of any API."""
    usage = answer.get("usage", answer)
    names = ("prompt_tokens", "prompt_eval_count", "input_tokens", "cache_read_input_tokens")
    return sum(usage.get(name, 0) for name in names)
