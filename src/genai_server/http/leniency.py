"""What a lenient endpoint leaves out of a request instead of refusing it, and how client and log learn of it."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from genai_server.errors import GenaiServerError, RequestError

log = logging.getLogger(__name__)

HEADER = "x-genai-ignored"
# Takes fields out of a body, in place, and returns the names of their places.
LeaveOut = Callable[[Any], list[str]]

# Of the header, in characters: proxies limit the size of all headers together.
_MAX_CHARACTERS = 2000
# Places, versions and limits, which differ between requests.
_VARYING = re.compile(r"\[\d+\]|_\d{8}\b|\d+")
# What this process has logged.
_logged: set[str] = set()


class Leniency:
    """What is left out of one request; nothing may be where it is treated strictly."""

    def __init__(self, leave_out: LeaveOut | None = None, *, caps: bool = False) -> None:
        # None for a strict request.
        self._leave_out = leave_out
        # Whether the answer's limit is reduced to what fits.
        self._caps = caps
        # The client's name for a field of the chat that its body becomes.
        self._outer_name: Callable[[str], str] = str
        self._left_out: list[str] = []

    @contextmanager
    def in_words(
        self, outer_name: Callable[[str], str], outer_error: Callable[[RequestError], GenaiServerError]
    ) -> Iterator[None]:
        """Let errors, and what is left out, name the fields of the body, not those of the chat that it becomes."""
        self._outer_name = outer_name
        try:
            yield
        except RequestError as error:
            raise outer_error(error) from None

    def apply(self, body: Any) -> None:
        """Take out of a body what has no effect."""
        if self._leave_out is not None:
            self._left_out += self._leave_out(body)

    def leave_out(self, field: str) -> bool:
        """Leave out a field of the chat that has no effect, and note it. Returns False where this is not allowed."""
        if self._leave_out is None:
            return False
        self._left_out.append(self._outer_name(field))
        return True

    def note(self, fields: Iterable[str]) -> None:
        """Note fields of the chat with what of them has no effect."""
        self._left_out += map(self._outer_name, fields)

    def cap(self, field: str, tokens: int) -> bool:
        """Reduce a limit of the answer to `tokens`, and note it. Returns False where this is not allowed."""
        if self._caps:
            self._left_out.append(f"{self._outer_name(field)} (capped to {tokens})")
        return self._caps

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
    if len(text) <= _MAX_CHARACTERS:
        return text
    start = text[:_MAX_CHARACTERS]
    return f"{start.rpartition(', ')[0] or start}, ..."
