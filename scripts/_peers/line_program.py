"""A program in a peer's environment that says when it is ready, and then answers lines with lines of JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _load.server import clean_environment

from _peers.environment import PeerUnavailable

_LAST = 300


@contextmanager
def line_program(command: Sequence[str | Path], log: Path) -> Iterator[Callable[[str], Any]]:
    """Run the program, with its errors in `log`; yields what sends it a line and returns the value of its answer.

    Raises PeerUnavailable if it ends before it is ready.
    """
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=clean_environment() | {"HF_HUB_OFFLINE": "1"},
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        given, answers = process.stdin, process.stdout
        line = answers.readline()
        while line and line.strip() != "ready":
            line = answers.readline()
        if not line:
            raise PeerUnavailable(log.read_text()[-_LAST:])

        def ask(question: str) -> Any:
            given.write(question + "\n")
            given.flush()
            return json.loads(answers.readline())

        yield ask
