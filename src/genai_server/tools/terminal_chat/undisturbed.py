"""Keeps keys that are pressed during an answer from disturbing the terminal's output.

An unfinished block is redrawn by moving the cursor up by the number of lines drawn before. A terminal that echoes typed
keys meanwhile, such as `^C` or a new line, moves the cursor itself, and an interrupted drawing is incomplete. In both
cases lines of the answer would remain and be shown twice.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


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
