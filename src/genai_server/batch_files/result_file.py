"""A file of results, one in each line, which stays readable if its process or the machine stops at any moment."""

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
    """Appends lines to a file so that each line is there completely or not at all. All methods block. The caller must
    close it.

    `recovered` must be iterated to its end before the first `append`. Raises OSError if the file cannot be read or
    written.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self._path = path
        # Unbuffered, so that nothing is left to be written after an error.
        self._file = open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
        # Bytes of complete lines.
        self.size = 0

    def recovered(self) -> Iterator[tuple[str, bytes]]:
        """Iterate over the complete lines that an earlier process has written to the file: the custom id and the text
        of each. An incomplete line at the end is removed from the file.
        """
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
        """Write complete lines to the disk. If this raises OSError, none of the lines is in the file."""
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
    """The number of the first line of a file that is not a result, counted from 1; None if all lines are results. An
    incomplete result at the end is ignored. Raises OSError.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            begins = not line.endswith(b"\n") and line.startswith(_BEGINNING[: len(line)])
            if _custom_id(line) is None and not begins:
                return number
    return None


def _custom_id(line: bytes) -> str | None:
    """The custom id of a line with a result; None if the line is incomplete or not a result."""
    if not line.endswith(b"\n"):
        return None
    try:
        return msgspec.json.decode(line, type=_Result).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
