"""Terminals of tmux, in which programs run, and a picture of their screens."""

from __future__ import annotations

import io
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser
from rich.console import Console
from rich.text import Text

_PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #fff; }}
main {{ display: inline-block; padding: 16px 20px; border: 1px solid #d8dade; border-radius: 8px; }}
pre {{ margin: 0; font: 14px/1.35 "DejaVu Sans Mono", monospace; color: #1c1e21; }}
.r {{ border-top: 1px solid #d8dade; margin: 12px -20px; }}
</style><main>{}</main>"""
_SECONDS = 60.0


class Terminal:
    """A terminal that a tmux server of this name has for itself."""

    def __init__(self, name: str) -> None:
        self._name = name

    def tmux(self, *words: str) -> str:
        """The output of a command of tmux."""
        command = ["tmux", "-L", self._name, "-f", "/dev/null", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def type(self, line: str) -> None:
        """Type a line, and Enter."""
        self.tmux("send-keys", "-l", line)
        self.tmux("send-keys", "Enter")

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until the screen shows the text this number of times. Raises TimeoutError after a minute."""
        until = time.monotonic() + _SECONDS
        while (shown := self.tmux("capture-pane", "-p")).count(text) < times:
            if time.monotonic() > until:
                raise TimeoutError(shown)
            time.sleep(0.2)

    def screen(self) -> str:
        """What the screen shows now, from its first line that is a command, with the codes of colours."""
        shown = self.tmux("capture-pane", "-e", "-p")
        return shown[shown.find("$ ") :]


@contextmanager
def terminal(folder: Path, *, columns: int, rows: int) -> Iterator[Terminal]:
    """A terminal of this size in a folder, in which a shell runs, until the block ends."""
    opened = Terminal(f"pictures-{time.monotonic_ns()}")
    size = ["-x", str(columns), "-y", str(rows), "-c", str(folder)]
    opened.tmux("new-session", "-d", *size, "bash --norc --noprofile")
    try:
        opened.tmux("set-option", "status", "off")
        # A short prompt, on an empty screen.
        opened.type("PS1='$ '; clear")
        time.sleep(1)
        yield opened
    finally:
        opened.tmux("send-keys", "C-c")
        time.sleep(1)
        opened.tmux("kill-server")


def save(browser: Browser, file: Path, screens: Sequence[str]) -> None:
    """Write a picture of these screens, one below the other."""
    page = browser.new_page(device_scale_factor=1.5)
    page.set_content(_PAGE.format('<div class="r"></div>'.join(map(_html, screens))))
    page.locator("main").screenshot(path=file)
    page.close()


def _html(shown: str) -> str:
    """A screen with colours as HTML."""
    console = Console(record=True, file=io.StringIO(), width=200, force_terminal=True, color_system="truecolor")
    for line in shown.rstrip().splitlines():
        console.print(Text.from_ansi(line), soft_wrap=True)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
