"""The media types of image files, detected by their first bytes."""

import re

IMAGE_FORMATS = "PNG, JPEG, WebP, GIF or BMP"
# BMP has four zeros where a text has letters.
_TYPES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/bmp": re.compile(rb"BM.{4}\0{4}", re.DOTALL),
}


def image_type(data: bytes | bytearray) -> str | None:
    """Return the media type of a file, such as `image/png`; None if it is no image of a supported format."""
    return next((name for name, beginning in _TYPES.items() if beginning.match(data)), None)
