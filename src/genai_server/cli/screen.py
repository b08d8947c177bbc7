"""Terminal output besides plain text: colors and progress bars. NO_COLOR switches colors off."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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


def say_aside(line: str) -> None:
    """Print a line on standard error, which is not part of the command's output, and flush it at once."""
    print(line, file=sys.stderr, flush=True)


def say_to_person(line: str) -> None:
    """Print a line that is not part of the command's output: on standard error, or in a terminal on standard
    output.
    """
    if sys.stdout.isatty():
        say(line)
    else:
        say_aside(line)


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
