"""How messages show a value that a client or a file gave: as JSON, whatever language the server is written in."""

import json

_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


def quoted(value: object, most: int = 100) -> str:
    """`true`, `null`, `"text"`: at most `most` characters, with `…` for the rest, which is not even encoded."""
    text = ""
    for piece in _ENCODER.iterencode(value[: most + 1] if isinstance(value, str) else value):
        text += piece
        if len(text) > most:
            text = text[:most] + "…"
            break
    return escaped(text)


def escaped(text: str) -> str:
    """The text on one line, with escapes for control characters, invisible ones and lone surrogates."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
