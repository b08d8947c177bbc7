"""A terminal of tmux, in which programs run, and its picture."""

from __future__ import annotations

import io
import subprocess
import time
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
    """A window of this size in a folder, which may be split once; typing goes to the lower half."""

    def __init__(self, folder: Path, *, columns: int, rows: int) -> None:
        self._folder, self._size = folder, (columns, rows)
        self._name = f"pictures-{time.monotonic_ns()}"
        self._panes = 1
        self._kept: list[str] = []

    def __enter__(self) -> Terminal:
        columns, rows = self._size
        self._tmux(
            "new-session", "-d", "-s", self._name, "-x", str(columns), "-y", str(rows), "-c", str(self._folder), _SHELL
        )
        self._tmux("set-option", "-t", self._name, "status", "off")
        self._prompt()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pane in reversed(range(self._panes)):
            self._tmux("send-keys", "-t", f"{self._name}.{pane}", "C-c")
            time.sleep(1)
        self._tmux("kill-server")

    def split(self, *, rows: int) -> None:
        """Add a lower half of this height."""
        self._tmux("split-window", "-t", self._name, "-v", "-l", str(rows), "-c", str(self._folder), _SHELL)
        self._panes = 2
        self._prompt()

    def type(self, line: str) -> None:
        """Type a line, and Enter."""
        self._tmux("send-keys", "-t", self._lowest, "-l", line)
        self._tmux("send-keys", "-t", self._lowest, "Enter")

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until the lower half shows the text this number of times. Raises TimeoutError after a minute."""
        until = time.monotonic() + _SECONDS
        while self._tmux("capture-pane", "-p", "-t", self._lowest).count(text) < times:
            if time.monotonic() > until:
                raise TimeoutError(self._tmux("capture-pane", "-p", "-t", self._lowest))
            time.sleep(0.2)

    def keep(self) -> None:
        """Remember what the lower half shows now, from its first line that is a command."""
        shown = self._tmux("capture-pane", "-e", "-p", "-t", self._lowest)
        self._kept.append(shown[shown.find("$ ") :])

    def save(self, browser: Browser, file: Path) -> None:
        """Write a picture of what was kept."""
        page = browser.new_page(device_scale_factor=1.5)
        page.set_content(_PAGE.format('<div class="r"></div>'.join(map(_html, self._kept))))
        page.locator("main").screenshot(path=file)
        page.close()
        with_few_colours(file)

    @property
    def _lowest(self) -> str:
        return f"{self._name}.{self._panes - 1}"

    def _prompt(self) -> None:
        """A short prompt, on an empty screen."""
        self.type("PS1='$ '; clear")
        time.sleep(1)

    def _tmux(self, *words: str) -> str:
        """Run a command of a tmux server for this terminal alone."""
        command = ["tmux", "-L", self._name, "-f", "/dev/null", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _html(shown: str) -> str:
    """A screen with colours as HTML."""
    console = Console(record=True, file=io.StringIO(), width=200, force_terminal=True, color_system="truecolor")
    for line in shown.rstrip().splitlines():
        console.print(Text.from_ansi(line), soft_wrap=True)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
