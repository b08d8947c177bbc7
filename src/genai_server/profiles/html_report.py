"""A report as one HTML page that needs nothing else: no network, no other file."""

from importlib.resources import files

import msgspec

from genai_server.profiles.report import Report

_PLACE = "{{report}}"


def as_page(report: Report) -> str:
    """The page, with the report in it as JSON."""
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    data = msgspec.json.encode(report).decode()
    # No name of a node or a request may end the element that it stands in.
    return template.replace(_PLACE, data.replace("<", "\\u003c"))
