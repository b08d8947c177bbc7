"""An engine's heartbeat: some numbers in a small file, which the engine maps into its memory and its supervisor reads.

A beat costs the engine less than a microsecond, and to see whether it beats takes nothing from it: native code may hold
Python's lock for a whole pass. Nothing in it is a time, so neither clocks nor a sleeping machine matter.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

_LAYOUT = struct.Struct("=QQQQ")
_COUNTS = struct.Struct("=QQ")
_COUNTS_AT = _LAYOUT.size - _COUNTS.size


class Beat(NamedTuple):
    """The newest beat: its number, counted from 1 in the life of a process, and the tokens of the pass that it begins;
    0 tokens between passes. Beside it the requests that run or wait, and how many have ever come.
    """

    number: int
    tokens: int
    requests: int = 0
    arrived: int = 0


class Heartbeat:
    """The engine's side, in the loop's thread; without a path in memory that nobody else reads."""

    def __init__(self, path: Path | None = None) -> None:
        self._number = 0
        if path is None:
            self._map = mmap.mmap(-1, _LAYOUT.size)
            return
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, bytes(_LAYOUT.size))
            self._map = mmap.mmap(descriptor, _LAYOUT.size)
        finally:
            os.close(descriptor)

    def beat(self, tokens: int = 0) -> None:
        """The loop turns; it begins a pass of so many tokens, of all rows together, or none yet."""
        self._number += 1
        _COUNTS.pack_into(self._map, 0, self._number, tokens)

    def count(self, requests: int, arrived: int) -> None:
        """So many requests run or wait; so many have come in the life of the process."""
        _COUNTS.pack_into(self._map, _COUNTS_AT, requests, arrived)


def read_beat(path: Path) -> Beat:
    """The newest beat; (0, 0) if there was none. Read while it is written it may be neither the old nor the new one."""
    try:
        return Beat(*_LAYOUT.unpack(path.read_bytes()))
    except (OSError, struct.error):  # it is not there, or not whole yet
        return Beat(0, 0)
