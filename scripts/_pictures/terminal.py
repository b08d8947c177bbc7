"""Terminals of tmux, in which programs run, and a picture of their screens."""

from __future__ import annotations

import io
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from playwright.sync_api import Browser
from rich.console import Console
from rich.text import Text

from _pictures.colours import with_few_colours

_PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #fff; }}
main {{ display: inline-block; padding: 16px 20px; border: 1px solid #d8dade; border-radius: 8px; }}
pre {{ margin: 0; font: 14px/1.35 "DejaVu Sans Mono", monospace; color: #1c1e21; }}
.r {{ border-top: 1px solid #d8dade; margin: 12px -20px; }}
</style><main>{}</main>"""
_SHELL = "bash --norc --noprofile"
_SECONDS = 60.0


class Terminal:
    """A terminal of this size in a folder, in which a shell runs."""

    def __init__(self, folder: Path, *, columns: int, rows: int) -> None:
        self._folder, self._size = folder, (columns, rows)
        self._name = f"pictures-{time.monotonic_ns()}"

    def __enter__(self) -> Terminal:
        columns, rows = map(str, self._size)
        size = ("-x", columns, "-y", rows, "-c", str(self._folder), _SHELL)
        self._tmux("new-session", "-d", "-s", self._name, *size)
        self._tmux("set-option", "-t", self._name, "status", "off")
        # A short prompt, on an empty screen.
        self.type("PS1='$ '; clear")
        time.sleep(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tmux("send-keys", "-t", self._name, "C-c")
        time.sleep(1)
        self._tmux("kill-server")

    def type(self, line: str) -> None:
        """Type a line, and Enter."""
        self._tmux("send-keys", "-t", self._name, "-l", line)
        self._tmux("send-keys", "-t", self._name, "Enter")

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until the screen shows the text this number of times. Raises TimeoutError after a minute."""
        until = time.monotonic() + _SECONDS
        while self._tmux("capture-pane", "-p", "-t", self._name).count(text) < times:
            if time.monotonic() > until:
                raise TimeoutError(self._tmux("capture-pane", "-p", "-t", self._name))
            time.sleep(0.2)

    def screen(self) -> str:
        """What the screen shows now, from its first line that is a command, with the codes of colours."""
        shown = self._tmux("capture-pane", "-e", "-p", "-t", self._name)
        return shown[shown.find("$ ") :]

    def _tmux(self, *words: str) -> str:
        """Run a command of a tmux server for this terminal alone."""
        command = ["tmux", "-L", self._name, "-f", "/dev/null", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def save(browser: Browser, file: Path, screens: Sequence[str]) -> None:
    """Write a picture of these screens, one below the other."""
    page = browser.new_page(device_scale_factor=1.5)
    page.set_content(_PAGE.format('<div class="r"></div>'.join(map(_html, screens))))
    page.locator("main").screenshot(path=file)
    page.close()
    with_few_colours(file)


def _html(shown: str) -> str:
    """A screen with colours as HTML."""
    console = Console(record=True, file=io.StringIO(), width=200, force_terminal=True, color_system="truecolor")
    for line in shown.rstrip().splitlines():
        console.print(Text.from_ansi(line), soft_wrap=True)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
