"""How messages show a value from a client or a file: as JSON, not as Python writes it; and what was probably meant."""

import difflib
import json
from collections.abc import Iterable

_ALIKE = 0.6
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


def quoted(value: object, limit: int = 100) -> str:
    """`true`, `null`, `"text"`: at limit `limit` characters, with `…` for the rest, which is not even encoded."""
    text = ""
    for piece in _ENCODER.iterencode(value[: limit + 1] if isinstance(value, str) else value):
        text += piece
        if len(text) > limit:
            text = text[:limit] + "…"
            break
    return escaped(text)


def escaped(text: str) -> str:
    """The text on one line, with escapes for control characters, invisible ones and lone surrogates."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of an error message: the known name most like the given one, or nothing."""
    found = difflib.get_close_matches(given, list(known), 1, _ALIKE)
    return f"; did you mean {found[0]}?" if found else ""
