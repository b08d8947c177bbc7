"""Standard output where it is a terminal: colours and tables that fit. NO_COLOR switches colours off."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def screen() -> "Console | None":
    """The terminal; None if standard output is not one, and then gets plain text."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console(highlight=False)


def show(*parts: str | tuple[str, str]) -> None:
    """Print a line of parts; a pair is a text and its style, which only a terminal shows."""
    console = screen()
    if console is None:
        print(*(part if isinstance(part, str) else part[0] for part in parts), sep="", flush=True)
        return
    from rich.text import Text

    console.print(Text.assemble(*parts), soft_wrap=True)
