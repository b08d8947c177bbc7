"""Prints reports of texts and tables in a terminal of any width."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genai_server.plain_tables import Rows, is_numeric, plain_report

_GAP = 2
# Minimum width of a text column; a table that needs a narrower one is transposed instead.
_MIN_TEXT = 16


def print_report(console: Console | None, parts: Iterable[str | Rows]) -> None:
    """Print texts and tables with an empty line between them.

    If `console` is None, the output is plain and of any width.
    """
    if console is None:
        print(plain_report(parts))
        return
    for number, part in enumerate(parts):
        if number:
            console.print()
        if isinstance(part, str):
            console.print(Text(part))
            continue
        for index, table in enumerate(fitted(part, console.width)):
            if index:
                console.print()
            console.print(table)


def fitted(rows: Rows, width: int) -> list[Table]:
    """Return the rows as one or more tables of at most `width` columns.

    Titles of numeric columns are wrapped, and text columns are made narrower. If that is not enough, the table is
    transposed: each row becomes a column, in as many tables as necessary.
    """
    widths = _widths(rows)
    if (narrowed := _narrowed(rows, widths, width)) is not None:
        return [_table(rows, narrowed)]
    turned = [list(column) for column in zip(*rows, strict=True)]
    titles, columns = [cells[0] for cells in turned], list(zip(*turned, strict=True))[1:]
    tables, first = [], 0
    while first < len(columns):
        left, last = width - max(map(cell_len, titles)), first
        while last < len(columns) and (left := left - _GAP - max(map(cell_len, columns[last]))) >= 0:
            last += 1
        last = max(last, first + 1)
        part = [[title, *cells] for title, *cells in zip(titles, *columns[first:last], strict=True)]
        tables.append(_table(part, _narrowed(part, _widths(part), width) or _widths(part)))
        first = last
    return tables


def _widths(rows: Rows) -> list[int]:
    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]


def _narrowed(rows: Rows, widths: Sequence[int], width: int) -> list[int] | None:
    """Return the widths of columns so that the table fits into `width`; None if that is impossible."""
    narrowed = list(widths)
    columns = list(zip(*rows, strict=True))
    for number, column in enumerate(columns):  # wrap titles of numeric columns
        if sum(narrowed) + _GAP * (len(narrowed) - 1) > width and is_numeric(column):
            narrowed[number] = max(map(cell_len, [*column[0].split(), *column[1:]]))
    texts = [number for number, column in enumerate(columns) if not is_numeric(column)]
    while (excess := sum(narrowed) + _GAP * (len(narrowed) - 1) - width) > 0:
        widest = max(texts, key=lambda number: narrowed[number], default=None)
        if widest is None or narrowed[widest] <= _MIN_TEXT:
            return None
        narrowed[widest] = max(_MIN_TEXT, narrowed[widest] - excess)
    return narrowed


def _table(rows: Rows, widths: Sequence[int]) -> Table:
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for title, width, column in zip(rows[0], widths, zip(*rows, strict=True), strict=True):
        table.add_column(
            title, width=width, justify="right" if is_numeric(column) else "left", overflow="fold", no_wrap=False
        )
    for row in rows[1:]:
        table.add_row(*(Text(_cropped(cell, width)) for cell, width in zip(row, widths, strict=True)))
    return table


def _cropped(text: str, width: int) -> str:
    """Return a name in at most `width` columns. Of a longer name, the end is kept, because long names differ at the
    end.

    Text with spaces stays unchanged.
    """
    return text if cell_len(text) <= width or " " in text else f"…{text[1 - width :]}"
