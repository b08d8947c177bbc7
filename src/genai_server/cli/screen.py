"""What a terminal shows besides plain text: colours and the progress of measurements. NO_COLOR switches colours off."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def screen() -> "Console | None":
    """The terminal; None if standard output is not one, and then gets plain text."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console(highlight=False)


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def say_aside(line: str) -> None:
    """Print a line at once on standard error, apart from a command's output."""
    print(line, file=sys.stderr, flush=True)


def say_to_person(line: str) -> None:
    """Print a line at once that is not part of a command's output: on standard error unless a person reads both."""
    if sys.stdout.isatty():
        say(line)
    else:
        say_aside(line)


def show(*parts: str | tuple[str, str]) -> None:
    """Print a line of parts; a pair is a text and its style, which only a terminal shows."""
    console = screen()
    if console is None:
        print(*(part if isinstance(part, str) else part[0] for part in parts), sep="", flush=True)
        return
    from rich.text import Text

    console.print(Text.assemble(*parts), soft_wrap=True)


@contextmanager
def measuring_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error, if that is a terminal.

    The function shows the number of steps that are done, the number of all, and a title.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    # Redrawn rarely, because the bar runs on the cores that are measured.
    with Progress(*columns, console=console, refresh_per_second=1, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total, title: progress.update(task, completed=done, total=total, description=title)
