"""Decodes untrusted images. Only for a process that may crash, or be killed, without harm."""

import struct
import warnings
import zlib
from io import BytesIO

import numpy as np
from PIL import Image

from genai_server.image_types import IMAGE_FORMATS, image_type

# Others have rare, old decoders. JPEG files with several pictures become MPO, of which the first one is read.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# The longer side of an image in low detail.
_LOW_DETAIL = 512
# Larger images are reduced to this number of pixels. No processor keeps as many, and resizing takes it seconds.
_MAX_KEPT_PIXELS = 16_000_000
_WHITE = (255, 255, 255, 255)
_ORIENTATION = 0x0112
# How to turn an image back, by the value of EXIF's orientation.
_TRANSPOSED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnusableImage(Exception):
    """The image cannot be used; the message says why, and its subject is the image."""


def decode(data: bytes, max_pixels: int, *, low_detail: bool = False) -> Image.Image:
    """The image as RGB without an alpha channel, turned upright; the first frame of an animation.

    Its size is checked before its pixels are decoded. Raises UnusableImage.
    """
    with warnings.catch_warnings(action="ignore"):  # of odd metadata
        return _decode(data, max_pixels, low_detail=low_detail)


def png(image: Image.Image) -> bytes:
    """An RGB image as a PNG file without metadata, and without compression: it is read once, in the same process."""
    pixels = np.asarray(image)
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # a row begins with its filter: 0
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.data, 0)), (b"IEND", b""))
    parts = [b"\x89PNG\r\n\x1a\n"]
    for name, content in chunks:
        parts += [
            struct.pack(">I", len(content)),
            name,
            content,
            struct.pack(">I", zlib.crc32(content, zlib.crc32(name))),
        ]
    return b"".join(parts)


def _decode(data: bytes, max_pixels: int, *, low_detail: bool) -> Image.Image:
    Image.MAX_IMAGE_PIXELS = None  # would raise without the image's size
    _check_size(_webp_size(data), max_pixels)  # this decoder allocates its pixels before it returns the size
    try:
        image: Image.Image = Image.open(BytesIO(data), formats=_FORMATS)
    except Exception:  # a decoder may raise anything
        if (kind := image_type(data)) is not None:
            name = kind.removeprefix("image/")
            raise UnusableImage(f"is damaged: it begins as a {name} file, and is cut off or wrong after that") from None
        raise UnusableImage(f"is not a {IMAGE_FORMATS} file") from None
    _check_size(image.size, max_pixels)
    Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        image.load()
        _check_size(image.size, max_pixels)
        orientation = _orientation(image)
        image = _rgb(image)
        if orientation in _TRANSPOSED:
            image = image.transpose(_TRANSPOSED[orientation])
    except UnusableImage:
        raise
    except Exception as error:
        raise UnusableImage(f"is damaged: {str(error) or type(error).__name__}") from None
    if low_detail:
        image.thumbnail((_LOW_DETAIL, _LOW_DETAIL), reducing_gap=2.0)
    elif (factor := (_MAX_KEPT_PIXELS / (image.width * image.height)) ** 0.5) < 1:
        image.thumbnail((max(1, int(image.width * factor)), max(1, int(image.height * factor))), reducing_gap=2.0)
    return image


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        raise UnusableImage(f"may have at most {max_pixels} pixels (GENAI_MAX_IMAGE_PIXELS), given {width}x{height}")
    if not width or not height:
        raise UnusableImage(f"must have pixels, given {width}x{height}")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Width and height by the header of a WebP file; 1 and 1 for other files."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return 1, 1
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        both = int.from_bytes(data[21:25], "little")
        return 1 + (both & 0x3FFF), 1 + (both >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF or 1, int.from_bytes(data[28:30], "little") & 0x3FFF or 1


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged metadata; the pixels are whole
        return 1


def _rgb(image: Image.Image) -> Image.Image:
    """The image as RGB, on white where it is transparent."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        # 16 bits, of which a conversion would keep the lower 8.
        wide = np.asarray(image).astype(np.float32)
        image = Image.fromarray((wide.clip(0, 65535) / 257).round().astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, _WHITE), image)
    return image.convert("RGB")
