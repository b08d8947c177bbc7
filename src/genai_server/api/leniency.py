"""What a lenient endpoint leaves out of a request instead of refusing it, and how client and log learn of it."""

import logging
import re
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Request

log = logging.getLogger(__name__)

HEADER = "x-genai-ignored"
# Takes fields out of a body, in place, and returns the names of their places.
LeaveOut = Callable[[Any], list[str]]

# Of the header, in characters: proxies limit the size of all headers together.
_MOST_CHARACTERS = 2000
# Places, versions and limits, which differ between requests.
_VARYING = re.compile(r"\[\d+\]|_\d{8}\b|\d+")
# What this process has logged.
_logged: set[str] = set()


class Leniency:
    """What is left out of one request."""

    def __init__(self, leave_out: LeaveOut, *, caps: bool = False) -> None:
        # Whether the answer's limit is reduced to what fits.
        self.caps = caps
        # The client's name for a field of the chat that its body becomes.
        self.outer_name: Callable[[str], str] = str
        self._leave_out = leave_out
        self._left_out: list[str] = []

    def apply(self, body: Any) -> None:
        """Take out of a body what has no effect."""
        self._left_out += self._leave_out(body)

    def leave_out(self, field: str) -> None:
        """Note a field of the chat that has no effect."""
        self._left_out.append(self.outer_name(field))

    def reduce(self, field: str, tokens: int) -> None:
        """Note the limit of the answer that holds instead of the client's."""
        self._left_out.append(f"{self.outer_name(field)} (capped to {tokens})")

    def report(self) -> dict[str, str]:
        """The header that names all of it; empty if there is nothing. Each name is logged once in a process."""
        for name in self._left_out:
            kind = _VARYING.sub("", name)
            if kind not in _logged:
                _logged.add(kind)
                log.info("left out of a request: %s (GENAI_STRICT=true refuses such requests)", name)
        text = ", ".join(dict.fromkeys(self._left_out))
        return {HEADER: _shortened(text.encode("ascii", "backslashreplace").decode())} if text else {}


def _shortened(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    start = text[:_MOST_CHARACTERS]
    return f"{start.rpartition(', ')[0] or start}, ..."


async def leniency(request: Request) -> Leniency | None:
    """The request's leniency; None where it is treated strictly."""
    found: Leniency | None = getattr(request.state, "leniency", None)
    return found


# The type of a route's parameter.
TheLeniency = Annotated[Leniency | None, Depends(leniency)]
