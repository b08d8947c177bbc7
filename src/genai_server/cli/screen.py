"""Output of commands: lines, colors and progress in a terminal, and reports of texts and tables in a terminal of any
width. NO_COLOR switches colors off.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from genai_server.errors import escaped
from genai_server.hub.client import Watch
from genai_server.hub.repository import RemoteFile, Selection
from genai_server.plain_tables import Rows, is_numeric, plain_report

if TYPE_CHECKING:
    from rich.console import Console


def screen() -> "Console | None":
    """Return the terminal for styled output; None if standard output is no terminal and gets plain text."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console(highlight=False)


def say(line: str) -> None:
    """Print a line and flush it at once."""
    print(line, flush=True)


def print_to_stderr(line: str) -> None:
    """Print a line on standard error, which is not part of the command's output, and flush it at once."""
    print(line, file=sys.stderr, flush=True)


def print_note(line: str) -> None:
    """Print a line that is not part of the command's output: on standard error, or in a terminal on standard
    output.
    """
    if sys.stdout.isatty():
        say(line)
    else:
        print_to_stderr(line)


def show(*parts: str | tuple[str, str]) -> None:
    """Print a line of parts. A part may be a pair of text and style; the style is used in a terminal only."""
    console = screen()
    if console is None:
        print(*(part if isinstance(part, str) else part[0] for part in parts), sep="", flush=True)
        return
    from rich.text import Text

    console.print(Text.assemble(*parts), soft_wrap=True)


@contextmanager
def measuring_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress bar on standard error during the block, if that is a terminal.

    Yields a function that updates the bar: number of steps done, number of all steps, title.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    # Redrawn rarely, because the bar runs on the cores that are measured.
    with Progress(*columns, console=console, refresh_per_second=1, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total, title: progress.update(task, completed=done, total=total, description=title)


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
        remaining, last = width - max(map(cell_len, titles)), first
        while last < len(columns) and (remaining := remaining - _GAP - max(map(cell_len, columns[last]))) >= 0:
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


_MIB = 1024 * 1024


def size_in_words(num_bytes: int) -> str:
    """Return a size in MiB or bytes, with its unit."""
    return f"{num_bytes / _MIB:.1f} MiB" if num_bytes >= _MIB else f"{num_bytes:,} bytes"


class _Speed(ProgressColumn):
    """A column with the speed in binary units, which Rich's own column lacks."""

    def render(self, task: Task) -> Text:
        return Text(f"{(task.speed or 0) / _MIB:.1f} MiB/s")


@contextmanager
def download_progress(selection: Selection, report: Callable[[str], None] = say) -> Iterator[Watch]:
    """Show the progress of a download on standard error during the block. Yields a function to pass to `download` as
    `watch`.

    If standard error is no terminal, `report` is called with a line for each file instead.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        BarColumn(bar_width=20),
        DownloadColumn(binary_units=True),
        _Speed(),
        TimeRemainingColumn(compact=True),
    )
    shown = {file: (number, name) for number, (name, file) in enumerate(selection.files.items(), 1)}
    received: dict[RemoteFile, int] = {}
    with Progress(*columns, console=console, expand=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=0, visible=False)

        def watch(file: RemoteFile, size: int) -> None:
            number, name = shown[file]
            title = f"{number}/{len(shown)} {escaped(name)}"
            if file not in received:  # what was here before has no part in the speed
                progress.update(task, total=(progress.tasks[0].total or 0) + file.size - size)
                if size < file.size and not console.is_terminal:
                    report(f"{title}  {size_in_words(file.size)}")
            else:
                progress.update(task, advance=size - received[file], description=title, visible=True)
            received[file] = size

        yield watch
