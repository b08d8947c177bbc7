"""Image files that go with a question."""

import base64
import re
from pathlib import Path

from genai_server.errors import ChatFailed

_MAX_BYTES = 20 * 1024 * 1024
# What a file begins with, by its type. BMP has four zeros where a text has letters.
_TYPES = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/bmp": re.compile(rb"BM.{4}\0{4}", re.DOTALL),
}


def data_url(path: Path) -> str:
    """The data URL of an image file.

    Raises ChatFailed if it cannot be read, is not an image, or has more than 20 MiB.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ChatFailed(f"{path} cannot be read: {(isinstance(error, OSError) and error.strerror) or error}") from None
    media_type = next((name for name, beginning in _TYPES.items() if beginning.match(content)), None)
    if media_type is None:
        raise ChatFailed(f"{path} is not a PNG, JPEG, WebP, GIF or BMP image")
    if len(content) > _MAX_BYTES:
        raise ChatFailed(f"{path} has {size} bytes; an image may have at most {_MAX_BYTES}")
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
