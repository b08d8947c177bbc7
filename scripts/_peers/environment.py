"""A peer's folder below the work folder: a virtual environment, and what is built or exported with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_LOG = "build.log"
_LAST = 300


class PeerUnavailable(Exception):
    """A peer cannot be built or served here; the message is the reason."""


class Environment:
    """A virtual environment at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin" / "python"

    def install(
        self, requirements: Sequence[str], *options: str, python: str = sys.executable, seconds: float | None = None
    ) -> None:
        """Install missing packages for this Python within a number of seconds."""
        if not self.python.exists():
            self.run([python, "-m", "venv", self.folder])
        self.run([self.python, "-m", "pip", "install", *options, *requirements], seconds=seconds)

    def run(self, command: Sequence[str | Path], *, seconds: float | None = None) -> None:
        """Run a command at low priority, with its output in the folder's log.

        Raises PeerUnavailable if it fails, or takes longer than `seconds`.
        """
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PATH": f"{self.python.parent}:{os.environ['PATH']}"}
        log = self.folder / _LOG
        words = [str(word) for word in command]
        print(f"{self.folder.name}: {' '.join(words)}"[:_LAST], file=sys.stderr, flush=True)
        program = Path(words[0]).name
        try:
            with log.open("ab") as file:
                subprocess.run(["nice", *words], env=environment, stdout=file, stderr=file, check=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise PeerUnavailable(f"{program} takes longer than {seconds} s: {end_of(log)}") from None
        except subprocess.CalledProcessError as error:
            raise PeerUnavailable(f"{program} ended with status {error.returncode}: {end_of(log)}") from None


def end_of(log: Path) -> str:
    """The last line of a log, cut if it is long, and the log's place."""
    line = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
    return f"{line[-_LAST:]} ({log})"
