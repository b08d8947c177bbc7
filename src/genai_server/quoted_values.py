"""How messages show a value that somebody gave: as JSON writes it, whichever language the server is written in."""

import json

_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


def quoted(value: object, most: int = 100) -> str:
    """`true`, `null`, `"text"`: at most so many characters, and `…` for the rest, which is not looked at."""
    text = ""
    for piece in _ENCODER.iterencode(value[: most + 1] if isinstance(value, str) else value):
        text += piece
        if len(text) > most:
            text = text[:most] + "…"
            break
    # What a terminal would obey, or not show, and halves of a pair.
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
