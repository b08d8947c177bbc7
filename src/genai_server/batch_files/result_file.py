"""A file of results, one in each line, that survives the end of its process at any moment."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

# How each line begins.
_BEGINNING = b'{"id":"batch_req_'


class _Result(msgspec.Struct):
    custom_id: str
    response: msgspec.Raw


class ResultFile:
    """Appends lines, each of which is in the file completely or not at all. All methods block. Must be closed.

    Read `recovered` to its end before the first `append`. Raises OSError.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self._path = path
        # Unbuffered, so that nothing is left to be written after an error.
        self._file = open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
        # Bytes of complete lines.
        self.size = 0

    def recovered(self) -> Iterator[tuple[str, bytes]]:
        """The custom id and the text of each complete line. What follows the last of them is removed."""
        self.size = 0
        with self._path.open("rb") as file:
            for line in file:
                custom_id = _custom_id(line)
                if custom_id is None:
                    break  # the process ended, or the machine lost power, while it was written
                self.size += len(line)
                yield custom_id, line
        self._file.truncate(self.size)

    def append(self, lines: bytes) -> None:
        """Write complete lines to the disk. After an error nothing of them is in the file."""
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(self.size)
            raise
        self.size += len(lines)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def first_other_line(path: Path) -> int | None:
    """The number of the first line that is not a result, nor the beginning of one at the end. Raises OSError."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            begins = not line.endswith(b"\n") and line.startswith(_BEGINNING[: len(line)])
            if _custom_id(line) is None and not begins:
                return number
    return None


def _custom_id(line: bytes) -> str | None:
    """The custom id of a complete line; None if it is not complete."""
    if not line.endswith(b"\n"):
        return None
    try:
        return msgspec.json.decode(line, type=_Result).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
