"""An engine's heartbeat: some numbers in a small file, which the engine maps into memory and its supervisor reads.

A beat costs the engine less than a microsecond. Reading it costs the engine nothing, although native code may hold
Python's lock for a whole step. It contains no times, so clock changes and a sleeping machine do not affect it.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

_LAYOUT = struct.Struct("=QQQQQ")
_COUNTS = struct.Struct("=QQ")
_COUNTS_AT = _COUNTS.size
_BYTES = struct.Struct("=Q")
_BYTES_AT = _LAYOUT.size - _BYTES.size


class Beat(NamedTuple):
    """The newest beat."""

    # Counted from 1 since the process started.
    number: int
    # Tokens of the step that begins; 0 between steps.
    tokens: int
    # Running and waiting requests.
    requests: int = 0
    # Requests that have ever arrived.
    arrived: int = 0
    # Bytes of keys and values in memory.
    kv_bytes: int = 0


class Heartbeat:
    """The engine's side, in the loop's thread. Without a path it is kept in memory."""

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
        """Beat once for each turn of the loop, with the tokens of all rows of the step that begins, or 0."""
        self._number += 1
        _COUNTS.pack_into(self._map, 0, self._number, tokens)

    def count(self, requests: int, arrived: int) -> None:
        """Publish the running and waiting requests, and the requests that have ever arrived."""
        _COUNTS.pack_into(self._map, _COUNTS_AT, requests, arrived)

    def hold(self, kv_bytes: int) -> None:
        """Publish the bytes of keys and values in memory."""
        _BYTES.pack_into(self._map, _BYTES_AT, kv_bytes)


def read_beat(path: Path) -> Beat:
    """The newest beat; zeros before the first one. Read during a write, it may mix the old and the new one."""
    try:
        return Beat(*_LAYOUT.unpack(path.read_bytes()))
    except (OSError, struct.error):  # it is missing or incomplete
        return Beat(0, 0)
