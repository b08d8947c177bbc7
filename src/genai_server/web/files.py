"""The files of the web page and of /docs, and the policy that browsers hold them to."""

from collections.abc import Iterable
from pathlib import Path

_HERE = Path(__file__).parent
PAGE = _HERE / "static"
API_DOCS = _HERE / "api_docs"


def names(folder: Path) -> list[str]:
    """The paths of all files below a folder, as they stand in a URL."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def content_security_policy(inline_hashes: Iterable[str] = ()) -> str:
    """The Content-Security-Policy of a page: nothing comes from another host, and no inline script runs.

    `inline_hashes` are those of the inline elements in the report of a profile, which the page shows in a frame. The
    frame's address is a `blob:`, which inherits the page's policy.
    """
    hashes = "".join(f" '{each}'" for each in inline_hashes)
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
