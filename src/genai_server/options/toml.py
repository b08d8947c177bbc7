"""Writes single keys and values of TOML, since Python's library only reads."""

import re
from collections.abc import Mapping
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


def with_settings(text: str, settings: Mapping[str, Any], table: str = "") -> str:
    """A configuration file's text with new values of some settings, or of some keys of a table.

    Their lines are replaced, or added before the others. Everything else stays as it is, comments included.
    """
    lines = text.splitlines()
    begin = 0
    if table:
        head = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\]")
        begin = next((number + 1 for number, line in enumerate(lines) if head.match(line)), 0)
        if not begin:
            lines.append(f"[{table}]")
            begin = len(lines)
    end = next((n for n in range(begin, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
    for name, value in settings.items():
        new = f"{toml_key(name)} = {toml_value(value)}"
        old = re.compile(rf"\s*{re.escape(toml_key(name))}\s*=")
        place = next((number for number in range(begin, end) if old.match(lines[number])), None)
        if place is None:
            lines.insert(begin, new)
            begin, end = begin + 1, end + 1
        else:
            lines[place] = new
    return "\n".join(lines) + "\n"
