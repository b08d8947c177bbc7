"""Writes single keys and values of TOML, since Python's library only reads."""

import re
from typing import Any

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")


def toml_key(name: str) -> str:
    """A key of one part, quoted if necessary."""
    return name if _PLAIN_KEY.fullmatch(name) else toml_value(name)


def toml_value(value: Any) -> str:
    """A quoted string, or a plain whole number."""
    text = str(value)
    if _INTEGER.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'


def with_settings(text: str, settings: dict[str, Any]) -> str:
    """A configuration file's text with new values of some settings.

    Their lines are replaced, or added at the top. Everything else stays as it is, comments included.
    """
    lines = text.splitlines()
    top = next((number for number, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    added = 0
    for name, value in settings.items():
        new = f"{name} = {toml_value(value)}"
        old = re.compile(rf"\s*{re.escape(name)}\s*=")
        place = next((number for number, line in enumerate(lines[:top]) if old.match(line)), None)
        if place is None:
            lines.insert(added, new)
            added, top = added + 1, top + 1
        else:
            lines[place] = new
    return "\n".join(lines) + "\n"
