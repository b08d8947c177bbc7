"""A table for a terminal, or for a document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def table(rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    """The first row is the head; columns after the first that hold figures only stand flush right in a document."""
    if markdown:
        figures = [all(cell[:1].isdigit() or cell == "–" for cell in column[1:]) for column in zip(*rows, strict=True)]
        rule = "".join("---:|" if figure else "---|" for figure in figures)
        head, *body = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([head, f"|{rule}", *body])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def write_between(page: Path, name: str, text: str) -> None:
    """Put text between the marks `<!-- NAME -->` and `<!-- end of NAME -->` of a document."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    page.write_text(before + begin + text + end + rest.partition(end)[2], encoding="utf-8")
