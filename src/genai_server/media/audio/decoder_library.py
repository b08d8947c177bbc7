"""Whether recordings can be decoded: FFmpeg's libraries are an extra, a quarter of what an installation needs."""

import importlib.util
from functools import cache

from genai_server.errors import TaskUnsupported

EXTRA = "audio"


@cache
def is_installed() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec("av") is not None


def require_decoder(param: str) -> None:
    """Raises TaskUnsupported, which names `param`, if no recording can be decoded."""
    if not is_installed():
        raise TaskUnsupported(
            param,
            f"cannot be used: this server cannot decode recordings, because it is installed without the extra {EXTRA}",
        )
