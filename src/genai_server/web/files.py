"""The static files of the server's web page and of its API documentation (/docs), and the Content-Security-Policy that
is sent with pages.
"""

from collections.abc import Iterable
from pathlib import Path

_WEB_FOLDER = Path(__file__).parent
PAGE = _WEB_FOLDER / "static"
API_DOCS = _WEB_FOLDER / "api_docs"


def names(folder: Path) -> list[str]:
    """Return the paths of all files below `folder`, relative to it and with slashes, as they appear in URLs."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def content_security_policy(inline_hashes: Iterable[str] = ()) -> str:
    """Return the value of the HTTP header Content-Security-Policy for a page: nothing is loaded from another host, and
    no inline script runs.

    `inline_hashes` are the hashes of inline scripts and styles that are allowed nevertheless: those of a profile's
    report, which the page shows in a frame. The frame's address is a `blob:`, which inherits the page's policy.
    """
    hashes = "".join(f" '{digest}'" for digest in inline_hashes)
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src 'self'{hashes}",
            f"style-src 'self'{hashes}",
            "img-src 'self' data:",
            "media-src data:",
            "frame-src blob:",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
