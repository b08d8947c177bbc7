"""Checks whether recordings can be decoded: FFmpeg's libraries are an optional extra because of their size."""

import importlib.util
from functools import cache

from genai_server.errors import TaskUnsupported

EXTRA = "audio"


@cache
def is_installed() -> bool:
    """Whether FFmpeg's libraries (the extra `audio`) are installed."""
    return importlib.util.find_spec("av") is not None


def require_decoder(param: str) -> None:
    """Raise TaskUnsupported, which names `param`, if FFmpeg's libraries are not installed."""
    if not is_installed():
        raise TaskUnsupported(
            param,
            f"cannot be used: this server cannot decode recordings, because it is installed without the extra {EXTRA}",
        )
