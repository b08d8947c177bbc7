"""Sends damaged files to what reads files of requests, and reports what became of them."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from _models.table import table

_CLIENTS = 3
_MAX_SHOWN = 20

# Reads the file of a number; returns a word for the result.
Read = Callable[[int, bytes], Awaitable[str]]


class FileFuzzer:
    """Sends files, and keeps what became of them.

    `make` gives a name and a file for a seed and a number. `late` is in the results of files that took too long.
    """

    def __init__(self, seed: int, make: Callable[[int, int], tuple[str, bytes]], late: str) -> None:
        self.results: Counter[tuple[str, str]] = Counter()
        # By the reader itself.
        self.counted: Counter[str] = Counter()
        self.broken: list[str] = []
        # Seconds and number of a file.
        self.slowest = (0.0, 0)
        # Numbers of the files that took too long.
        self.late: list[int] = []
        self._seed = seed
        self._make = make
        self._late = late

    def count(self, result: str) -> None:
        """Count a result of the reader."""
        self.counted[result] += 1

    def refused(self, number: int, param: str | None, message: str, field: str, begin: str) -> str:
        """The result of a file that was refused: the reason without numbers."""
        if param != field or not message.startswith(field):
            self.broken.append(f"{number}: {param}: {message}")
        return f"refused: {message.removeprefix(begin).partition(',')[0].partition(':')[0]}"[:80]

    async def send(self, numbers: range, read: Read) -> None:
        """Send the files of these numbers, some at the same time."""
        left = iter(numbers)

        async def client() -> None:
            for number in left:
                name, data = await asyncio.to_thread(self._make, self._seed, number)
                started = time.monotonic()
                try:
                    result = await read(number, data)
                except Exception as error:
                    result = type(error).__name__
                    self.broken.append(f"{number}: {name}: {result}: {error}")
                self._note(number, name, result, time.monotonic() - started)

        await asyncio.gather(*(client() for _ in range(_CLIENTS)))

    def _note(self, number: int, name: str, result: str, seconds: float) -> None:
        self.results[name, result] += 1
        self.slowest = max(self.slowest, (seconds, number))
        if self._late in result:
            self.late.append(number)
        if self.counted["crashed"]:
            self.broken.append(f"{number}, or one at the same time, crashed a process")
            self.counted["crashed"] = 0


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The program's arguments: those of `parser`, and those that all fuzzers of files have."""
    parser.add_argument("--count", type=int, default=20_000, help="files in all (20000)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this file of the seed")
    parser.add_argument("--markdown", action="store_true", help="print the table as a document has it")
    return parser.parse_args()


def fuzz(
    arguments: argparse.Namespace,
    make: Callable[[int, int], tuple[str, bytes]],
    late: str,
    work: Callable[[FileFuzzer, range, Path], Awaitable[None]],
) -> None:
    """The program: send files with `work`, print what became of them. Exits with status 0 or 1."""
    numbers = range(arguments.count) if arguments.only is None else range(arguments.only, arguments.only + 1)
    fuzzer = FileFuzzer(arguments.seed, make, late)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(work(fuzzer, numbers, Path(folder)))  # type: ignore[arg-type]
    rows = [(name, how, str(number)) for (name, how), number in sorted(fuzzer.results.items())]
    print(table([("file", "result", "number"), *rows], markdown=arguments.markdown), end="\n\n")
    print(f"{time.monotonic() - started:.0f} s, seed {arguments.seed}, processes' results {dict(fuzzer.counted)}")
    print(f"longest {fuzzer.slowest[0]:.2f} s (number {fuzzer.slowest[1]}), too long: {fuzzer.late or 'none'}")
    for complaint in fuzzer.broken[:_MAX_SHOWN]:
        print(f"BROKEN: {complaint}")
    print(f"broken promises: {len(fuzzer.broken) or 'none'}")
    sys.exit(bool(fuzzer.broken))
