"""Runs a program to its end, or to its time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .client import Check

_KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")
_LAST = 300


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    # None after a timeout.
    status: int | None
    output: str
    # What it wrote to standard error.
    errors: str

    @property
    def why(self) -> str:
        """Why it failed, with its last output; "" if it did not."""
        if self.status == 0:
            return ""
        last = (self.errors.strip() or self.output.strip()).rpartition("\n")[2][-_LAST:]
        return f"{'its time was over' if self.status is None else f'exit status {self.status}'}: {last}"

    @property
    def checks(self) -> list[Check]:
        """The checks of a program that prints a line of JSON for each, and its failure."""
        found = [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]
        checks = [Check(each["check"], each["why"]) for each in found]
        return [*checks, Check("the program", self.why)] if self.why else checks


def run(command: Sequence[str | Path], environment: Mapping[str, str], folder: Path, seconds: float) -> Ended:
    """Run a program in a folder, which is also its home, with almost nothing of the caller's environment.

    All its processes end with it.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    output, errors = folder / "output.log", folder / "errors.log"
    # Files, because a process that outlives its session would hold a pipe open.
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder,
            env=kept | {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"} | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Ended(status, *(path.read_text(encoding="utf-8", errors="replace") for path in (output, errors)))
