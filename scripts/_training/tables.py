"""The tables and lists of words that training text is made from."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).with_name("words")


def table(name: str) -> dict[str, Any]:
    """The table of this name. The order of its entries is that of the file."""
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def words(name: str) -> list[str]:
    """The list of words of this name."""
    return (_FOLDER / f"{name}.txt").read_text(encoding="ascii").split()
