"""Parsers of the scripts' arguments."""

from __future__ import annotations


def numbers(text: str) -> tuple[int, ...]:
    """Numbers with commas between them, each once. Raises ValueError."""
    return tuple(dict.fromkeys(int(part) for part in text.split(",")))
