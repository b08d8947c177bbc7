"""Output of commands: lines and colors (`say`, `show`, `print_note`), progress bars (`measuring_bar`,
`download_progress`), and reports of texts and tables that fit a terminal of any width (`print_report`). The environment
variable NO_COLOR switches colors off.
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
    """Return the terminal on which styled output can be printed; None if standard output is no terminal, so that it
    must get plain text.
    """
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console(highlight=False)


def say(line: str) -> None:
    """Print a line on standard output and flush it at once."""
    print(line, flush=True)


def print_to_stderr(line: str) -> None:
    """Print a line on standard error and flush it at once. This is for messages that are not part of the command's
    output.
    """
    print(line, file=sys.stderr, flush=True)


def print_note(line: str) -> None:
    """Print a line that is not part of the command's output, so that a pipe does not get it: on standard output if that
    is a terminal, otherwise on standard error.
    """
    if sys.stdout.isatty():
        say(line)
    else:
        print_to_stderr(line)


def show(*parts: str | tuple[str, str]) -> None:
    """Print one line that consists of `parts`. A part is a text, or a pair of a text and a Rich style such as "bold
    red"; styles are used only if standard output is a terminal.
    """
    console = screen()
    if console is None:
        print(*(part if isinstance(part, str) else part[0] for part in parts), sep="", flush=True)
        return
    from rich.text import Text

    console.print(Text.assemble(*parts), soft_wrap=True)


@contextmanager
def measuring_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress bar on standard error during a `with` block; nothing is shown if standard error is no terminal.

    Yields a function that updates the bar. Its arguments are the number of steps done, the number of all steps, and a
    title.
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
    """Print texts and tables (lists of rows) with an empty line between them. Tables are fitted to the width of the
    terminal `console`. If `console` is None, the output is plain text of any width.
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
    """Return a table with the given rows, the first of which has the titles, or several tables if one would be wider
    than `width` characters.

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
    """Return the widths of a table's columns, reduced so that the table is at most `width` characters wide; None if
    that is impossible. `widths` are the widths that the columns need without wrapping.
    """
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
    """Return the text of a table's cell in at most `width` characters. Of a longer name only the end is kept, because
    long names differ at the end.

    A text with spaces is returned unchanged.
    """
    return text if cell_len(text) <= width or " " in text else f"…{text[1 - width :]}"


_MIB = 1024 * 1024


def size_in_words(num_bytes: int) -> str:
    """Return a number of bytes as a text with its unit: in MiB or, below one MiB, in bytes."""
    return f"{num_bytes / _MIB:.1f} MiB" if num_bytes >= _MIB else f"{num_bytes:,} bytes"


class _Speed(ProgressColumn):
    """A column of Rich's progress bar that shows the speed of a download in MiB/s, for which Rich has no column."""

    def render(self, task: Task) -> Text:
        return Text(f"{(task.speed or 0) / _MIB:.1f} MiB/s")


@contextmanager
def download_progress(selection: Selection, report: Callable[[str], None] = say) -> Iterator[Watch]:
    """Show the progress of a download on standard error during a `with` block. Yields a function that must be called
    with a file and the number of its bytes that have arrived, whenever this number changes.

    `selection` has the files. If standard error is no terminal, no bar is shown, but `report` is called with a line for
    each file that has to be downloaded.
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
