"""Shows a report as a single HTML page, which needs no network and no other file."""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

import msgspec

from genai_server.profiles.report import Report

_PLACE = "{{report}}"
_INLINE = re.compile(r"<(?:script|style)>(.*?)</(?:script|style)>", re.DOTALL)


def as_page(report: Report) -> str:
    """Return the HTML page of a report. The page contains the report as JSON, which its script shows."""
    data = msgspec.json.encode(report).decode()
    # Names of nodes and requests must not close the element that contains them.
    return _template().replace(_PLACE, data.replace("<", "\\u003c"))


@cache
def inline_hashes() -> tuple[str, ...]:
    """Return the hashes of the page's script and style, in the format of a Content-Security-Policy."""
    found = _INLINE.findall(_template())
    return tuple(f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}" for text in found)


def _template() -> str:
    return files(__package__).joinpath("page.html").read_text(encoding="utf-8")
