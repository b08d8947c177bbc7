"""Writes single keys and values of TOML, since Python's library only reads."""

import re
from typing import Any

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")


def toml_key(name: str) -> str:
    """The key as it is written in TOML: bare where its characters allow that, else quoted."""
    return name if _PLAIN_KEY.fullmatch(name) else toml_value(name)


def toml_value(value: Any) -> str:
    """The value as it is written in TOML: bare if it is a whole number, else as a quoted string."""
    text = str(value)
    if _INTEGER.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
