"""Shows an answer as Markdown in a terminal while it arrives, and keeps keys that are pressed meanwhile from disturbing
the output.

An unfinished block is redrawn by moving the cursor up by the number of lines drawn before. A terminal that echoes typed
keys meanwhile, such as `^C` or a new line, moves the cursor itself, and an interrupted drawing is incomplete. In both
cases lines of the answer would remain and be shown twice.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.theme import Theme


@contextmanager
def without_echo() -> Iterator[None]:
    """Within the block, the terminal does not echo typed keys; they are read afterwards. Has no effect on
    Windows.
    """
    if sys.platform == "win32":
        yield
    else:
        import termios

        before: list[Any] | None = None
        with suppress(termios.error, ValueError):  # the terminal is gone
            if sys.stdin is not None and sys.stdin.isatty():
                before = termios.tcgetattr(sys.stdin)
                silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
                termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
        try:
            yield
        finally:
            if before is not None:
                with suppress(termios.error, ValueError):
                    termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Let Ctrl-C within the block take effect at the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)


# Colours of the terminal's palette, which suits its background, light or dark.
_THEME = Theme({"markdown.code": "cyan", "markdown.code_block": "none", "markdown.block_quote": "italic"})
_CODE = "ansi_light"
# Seconds between two drawings.
_PAUSE = 0.05
# Free lines of the screen below an unfinished block.
_MARGIN = 2


class MarkdownStream:
    """Prints the finished blocks of a Markdown text once, and redraws the unfinished last block while it grows.

    If the unfinished block is higher than the screen, only its last lines are shown.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        # The source of the unfinished block.
        self._text = ""
        self._has_blocks = False
        # Drawn from this thread only: rich's own thread may draw between two parts of a print. Nothing else is printed
        # meanwhile that rich would have to redirect.
        self._live = Live(
            "", console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._drawn = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with deferring_interrupts():
            if not self._live.is_started:
                return
            self._live.update("")
            self._live.stop()
            self._print(self._text)
            self._console.pop_theme()

    def add(self, piece: str) -> None:
        """Show the next piece of the answer."""
        self._text += piece
        done = finished(self._text) if "\n" in piece else 0
        if not done and time.monotonic() - self._drawn < _PAUSE:
            return
        with deferring_interrupts(), self._console:  # written at once
            if not self._live.is_started:
                self._console.push_theme(_THEME)
                self._live.start()
            if done:
                block, self._text = self._text[:done], self._text[done:]
                self._live.update("", refresh=True)
                self._print(block)
            self._live.update(_Block(self._text, is_last=True, is_below_others=self._has_blocks), refresh=True)
        self._drawn = time.monotonic()

    def _print(self, text: str) -> None:
        if text.strip():
            if self._has_blocks:
                self._console.print()
            self._has_blocks = True
            self._console.print(_Block(text))


def finished(text: str) -> int:
    """Return the length in characters of all blocks of a text except the last one, which may continue."""
    starts = [token.map[0] for token in Markdown(text).parsed if token.level == 0 and token.map and token.nesting >= 0]
    if len(starts) < 2:
        return 0
    return sum(len(line) + 1 for line in text.split("\n")[: starts[-1]])


class _Block:
    """A block of Markdown, rendered without surrounding empty lines.

    If it is the last block, only as many lines as fit on the screen are shown.
    """

    def __init__(self, text: str, *, is_last: bool = False, is_below_others: bool = False) -> None:
        self._text = text
        self._is_last = is_last
        self._is_below_others = is_below_others

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        markdown = Markdown(self._text, code_theme=_CODE, inline_code_theme=_CODE)
        lines = _trimmed(console.render_lines(markdown, options.update(height=None), pad=False))
        if self._is_last:
            if lines and self._is_below_others:
                lines.insert(0, [])
            lines = lines[-max(1, options.max_height - _MARGIN) :]
        for line in lines:
            yield from line
            yield Segment.line()


def _trimmed(lines: list[list[Segment]]) -> list[list[Segment]]:
    """Return the lines from the first to the last that is not blank."""
    filled = [number for number, line in enumerate(lines) if any(segment.text.strip() for segment in line)]
    return lines[filled[0] : filled[-1] + 1] if filled else []
