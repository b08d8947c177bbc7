"""Reads the media type and the size in pixels of an image from the header of its file. The number of pixels is what
preparing the image costs.

This runs in the API process, so only bytes at fixed positions are read and no decoder runs on untrusted files. The
decoder in the worker process checks the actual size later.
"""

import re
import struct
from collections.abc import Iterator

IMAGE_FORMATS = "PNG, JPEG, WebP, GIF or BMP"
# BMP has four zeros where a text has letters.
_TYPES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/bmp": re.compile(rb"BM.{4}\0{4}", re.DOTALL),
}
# Larger images are reduced to this number of pixels. No processor keeps as many, and resizing takes it seconds.
MAX_KEPT_PIXELS = 16_000_000
# Markers of JPEG's frame headers, and those of its parts without a length.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset((0x01, *range(0xD0, 0xD9)))
_START_OF_SCAN, _END = 0xDA, 0xD9


def image_type(data: bytes | bytearray) -> str | None:
    """Return the media type of a file, such as `image/png`, by its first bytes; None if it is no image of a supported
    format.
    """
    return next((name for name, beginning in _TYPES.items() if beginning.match(data)), None)


def declared_size(data: bytes) -> tuple[int, int] | None:
    """Return the width and height in pixels that the header of an image file declares.

    None if the header has no size, is cut off, or is of an unknown format. Of a JPEG file, the largest size counts.
    """
    try:
        match image_type(data):
            case "image/png" if data[12:16] == b"IHDR":
                return struct.unpack(">II", data[16:24])
            case "image/jpeg":
                return max(_jpeg_frames(data), key=lambda size: size[0] * size[1], default=None)
            case "image/webp":
                return webp_size(data)
            case "image/gif":
                return struct.unpack("<HH", data[6:10])
            case "image/bmp" if data[14:18] == b"\x0c\0\0\0":
                return struct.unpack("<HH", data[18:22])
            case "image/bmp":
                width, height = struct.unpack("<ii", data[18:26])
                return abs(width), abs(height)
    except struct.error:  # the file ends in its head
        pass
    return None


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Return the width and height in pixels from the header of a WebP file; None for other files."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        both = int.from_bytes(data[21:25], "little")
        return 1 + (both & 0x3FFF), 1 + (both >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF or 1, int.from_bytes(data[28:30], "little") & 0x3FFF or 1


def _jpeg_frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the width and height in pixels of each frame header in a JPEG file, up to the first scan.

    Raises struct.error if the file ends within a header.
    """
    offset = 2
    while (offset := data.find(b"\xff", offset)) >= 0 and offset + 1 < len(data):
        marker = data[offset + 1]
        if marker == 0xFF:  # a byte that only fills
            offset += 1
        elif marker in _ALONE or marker == 0:
            offset += 2
        elif marker in (_START_OF_SCAN, _END):
            return
        else:
            (length,) = struct.unpack(">H", data[offset + 2 : offset + 4])
            if marker in _FRAMES:
                height, width = struct.unpack(">HH", data[offset + 5 : offset + 9])
                yield width, height
            offset += 2 + max(length, 2)
