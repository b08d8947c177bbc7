"""A report as a single HTML page, which needs no network and no other file."""

from importlib.resources import files

import msgspec

from genai_server.profiles.report import Report

_PLACE = "{{report}}"


def as_page(report: Report) -> str:
    """The page, which contains the report as JSON."""
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    data = msgspec.json.encode(report).decode()
    # Names of nodes and requests must not close the element that contains them.
    return template.replace(_PLACE, data.replace("<", "\\u003c"))
