"""The picture that clients send, and what the model for it makes of that."""

from __future__ import annotations

import base64
import struct
import zlib

IMAGES_MODEL = "pictures"
_SIDE = 256
# The model has a token for 32 by 32 pixels, and one before and after the image.
TOKENS = (_SIDE // 32) ** 2 + 2


def png() -> bytes:
    """A PNG in one colour."""
    rows = (b"\0" + b"\xc8\x32\x32" * _SIDE) * _SIDE
    head = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
    chunks = (_chunk(b"IHDR", head), _chunk(b"IDAT", zlib.compress(rows, 9)), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def environment(images_url: str) -> dict[str, str]:
    """What programs of clients read of the picture and its model."""
    return {
        "CHECKED_IMAGES_URL": images_url,
        "CHECKED_IMAGES_MODEL": IMAGES_MODEL,
        "CHECKED_PICTURE": base64.b64encode(png()).decode(),
        "CHECKED_PICTURE_TOKENS": str(TOKENS),
    }
