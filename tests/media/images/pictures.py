"""Image files of all formats, made in memory."""

import base64
import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

RED, GREEN = (200, 10, 10), (10, 200, 10)


def picture(width: int = 64, height: int = 48) -> Image.Image:
    """Red on the left, green on the right."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(GREEN, (width // 2, 0, width, height))
    return image


def encoded(image: Image.Image | None = None, format: str = "PNG", **options: Any) -> bytes:
    """An image as a file."""
    file = BytesIO()
    (image or picture()).save(file, format, **options)
    return file.getvalue()


def data_url(data: bytes) -> str:
    """A file as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def png_header(width: int, height: int) -> bytes:
    """A PNG file that claims a size and has no pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )


def tiles(width: int, height: int, seed: int) -> bytes:
    """A PNG file of 64 rectangles, whose colors follow from the seed."""
    colors = np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    return encoded(Image.fromarray(colors).resize((width, height), Image.Resampling.NEAREST))
