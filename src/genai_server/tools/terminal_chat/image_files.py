"""Reads image files that are sent with a question."""

import base64
from pathlib import Path

from genai_server.errors import ChatFailed
from genai_server.media.images.image_types import IMAGE_FORMATS, image_type

_MAX_BYTES = 20 * 1024 * 1024


def data_url(path: Path) -> str:
    """Return the data URL of an image file.

    Raises ChatFailed if the file cannot be read, is not an image, or is larger than 20 MiB.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ChatFailed(f"{path} cannot be read: {(isinstance(error, OSError) and error.strerror) or error}") from None
    media_type = image_type(content)
    if media_type is None:
        raise ChatFailed(f"{path} is not a {IMAGE_FORMATS} image")
    if len(content) > _MAX_BYTES:
        raise ChatFailed(f"{path} has {size} bytes; an image may have at most {_MAX_BYTES}")
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"
