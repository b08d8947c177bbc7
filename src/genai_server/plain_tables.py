"""Formats reports that consist of texts and tables as plain text, for the terminal (`plain_report`)."""

from collections.abc import Iterable, Sequence

# The first row has the titles.
Rows = Sequence[Sequence[str]]

_NUMERIC = "0123456789+–"


def plain_report(parts: Iterable[str | Rows]) -> str:
    """Return texts and tables as one text, with an empty line between them. A table is a list of rows of cells; its
    first row has the titles.
    """
    return "\n\n".join(part if isinstance(part, str) else _table(part) for part in parts)


def is_numeric(column: Sequence[str]) -> bool:
    """Return whether all cells of a column below its title are numbers or empty, so that the column is aligned to the
    right.
    """
    return all(not cell or cell[0] in _NUMERIC for cell in column[1:])


def _table(rows: Rows) -> str:
    """Format a table as text: columns two spaces apart, numbers right-aligned, and a line below the titles in the first
    row.
    """
    shapes = [(max(map(len, column)), is_numeric(column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, (width, is_right) in zip(row, shapes, strict=True)
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
