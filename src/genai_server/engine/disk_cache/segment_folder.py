"""The folder of prefixes: one subfolder for each model, in it one file for each segment.

A segment's file is named after the prefix before it, the number of its tokens, and the prefix that it completes. The
names alone are the index. Models with states of fixed size have further files, named after a prefix, with the states
behind it. All engines of a host may use the folder at once: files never change, and come and go as a whole. The time of
a file's last use is its modification time, and a segment's is before that of the segment which it follows, so that the
least recently used file has none behind it.
"""

import contextlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from numpy.typing import NDArray

from genai_server.engine.disk_cache.segment_file import (
    ArrayLayout,
    UnusableSegment,
    read_segment,
    segment_key,
    write_segment,
)

log = logging.getLogger(__name__)
_SEGMENT = re.compile(r"([0-9a-f]{32})-(\d+)-([0-9a-f]{32})\.kv")
_STATES = ".states"
_REMOVED = ".removed-"
# Seconds to wait for another process that writes.
_PATIENCE = 10.0
# Nanoseconds in which a folder may change again without another modification time.
_SAME_TIME = 100_000_000
# Seconds between the modification times of a segment and of the one behind it.
_LATER = 1e-3


@dataclass(frozen=True)
class Segment:
    """One step of a prefix."""

    parent: str
    num_tokens: int
    key: str

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.parent}-{self.num_tokens}-{self.key}.kv"


@dataclass(frozen=True)
class StoredModel:
    """What the folder has of one model."""

    name: str
    num_files: int
    num_bytes: int
    # Seconds since 1970.
    last_used: float


class SegmentFolder:
    """The files of one model, within a folder whose files of all models have `max_bytes` at most.

    Any thread may use it. Raises OSError if the folder cannot be made, or if others could read it.
    """

    def __init__(self, root: Path, model: str, max_bytes: int, now: Callable[[], float] = time.time) -> None:
        self.root = root
        self._path = root / model
        self.max_bytes = max_bytes
        self._now = now
        self._children: dict[str, set[Segment]] = {}
        self._with_states: set[str] = set()
        self._scanned = -1  # the folder's modification time, in nanoseconds
        self._changing = threading.Lock()  # of these three
        _make_private(root)
        for removed in root.glob(f"{_REMOVED}*"):  # by a process that was killed
            shutil.rmtree(removed, ignore_errors=True)
        # Bytes of all models' files when this process last wrote.
        self.num_bytes = sum(status.st_size for _, status in _files(root))
        self._temporary = root / ".writing"
        self._lock = FileLock(str(root / "lock"), timeout=_PATIENCE, mode=0o600, thread_local=False)

    @property
    def limit(self) -> int:
        """Bytes that all files may have, as far as the disk has space. Raises OSError."""
        return min(self.max_bytes, self.num_bytes + shutil.disk_usage(self.root).free)

    def longest(self, root: str, tokens: Sequence[int], *, states: bool) -> list[Segment]:
        """The segments of the longest stored prefix of these tokens, in their order.

        With `states`, one whose states are stored.
        """
        found: list[Segment] = []
        best: list[Segment] = []
        parent, position = root, 0
        with self._changing:
            self._scan()
            while matching := [
                one
                for one in self._children.get(parent, ())
                if segment_key(parent, tokens[position : position + one.num_tokens]) == one.key
            ]:
                for one in sorted(matching, key=lambda one: one.num_tokens):
                    if not states or one.key in self._with_states:
                        best = [*found, one]
                found.append(max(matching, key=lambda one: one.num_tokens))
                parent, position = found[-1].key, position + found[-1].num_tokens
        return best

    def has(self, segment: Segment) -> bool:
        """Whether a segment is stored, as far as is known."""
        return segment in self._children.get(segment.parent, ())

    def has_states(self, key: str) -> bool:
        """Whether the states behind a prefix are stored, as far as is known."""
        return key in self._with_states

    def read(self, segment: Segment, tokens: Sequence[int], layout: Sequence[ArrayLayout]) -> list[NDArray[Any]] | None:
        """A segment's keys and values; None if it is unusable."""
        return self._read(segment.name, segment.parent, tokens, layout)

    def read_states(self, key: str, layout: Sequence[ArrayLayout]) -> list[NDArray[Any]] | None:
        """The states behind a prefix; None if they are unusable."""
        return self._read(f"{key}{_STATES}", key, (), layout)

    def _read(
        self, name: str, parent: str, tokens: Sequence[int], layout: Sequence[ArrayLayout]
    ) -> list[NDArray[Any]] | None:
        path = self._path / name
        try:
            return read_segment(path, parent, tokens, layout)
        except FileNotFoundError:
            self._forget(name)  # another process has removed it
        except (OSError, UnusableSegment, MemoryError) as error:
            log.warning("the cached prefix in %s is not used: %s", path, error)
            self._forget(name)
            with contextlib.suppress(OSError):
                path.unlink()
        return None

    @contextlib.contextmanager
    def writing(self, num_bytes: int) -> Iterator[None]:
        """A block that may write up to `num_bytes`, for which older files of all models are removed. Raises OSError."""
        try:
            with self._lock:
                _make_private(self._path)
                self._temporary.unlink(missing_ok=True)  # of a killed process, since this one has the lock
                self._make_room(num_bytes)
                yield
        except Timeout:
            raise OSError(f"another process has {self._lock.lock_file} for {_PATIENCE:.0f} s") from None

    def write(self, segment: Segment, tokens: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None:
        """Store a segment, in a block of `writing`. Raises OSError."""
        self._write(segment.name, segment.parent, tokens, arrays)

    def write_states(self, key: str, arrays: Sequence[NDArray[Any]]) -> None:
        """Store the states behind a prefix, in a block of `writing`. Raises OSError."""
        self._write(f"{key}{_STATES}", key, (), arrays)

    def _write(self, name: str, parent: str, tokens: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None:
        try:
            write_segment(self._temporary, parent, tokens, arrays)
            self.num_bytes += self._temporary.stat().st_size
            os.replace(self._temporary, self._path / name)
        finally:
            self._temporary.unlink(missing_ok=True)
        with self._changing:
            self._add(name)

    def _make_room(self, num_bytes: int) -> None:
        """Remove the least recently used files of all models."""
        files = sorted(_files(self.root), key=lambda file: file[1].st_mtime)
        self.num_bytes = sum(status.st_size for _, status in files)
        limit = self.limit
        for path, status in files:
            if self.num_bytes + num_bytes <= limit:
                return
            path.unlink(missing_ok=True)
            self._forget(path.name)
            self.num_bytes -= status.st_size

    def touch(self, segments: Sequence[Segment], *, states: bool) -> None:
        """Note that a prefix was used."""
        now = self._now()
        names = [segment.name for segment in segments]
        names += [f"{segments[-1].key}{_STATES}"] if segments and states else []
        for number, name in enumerate(names):
            at = now - number * _LATER
            with contextlib.suppress(OSError):  # it is gone
                os.utime(self._path / name, (at, at))

    def set_aside(self) -> Path | None:
        """Make all files of the model unusable at once; returns the folder to delete, or None if there are none."""
        removed = _set_aside(self._path)
        with self._changing:
            self._scan()
        return removed

    def _scan(self) -> None:
        """Read the names again if files have come or gone."""
        try:
            changed = self._path.stat().st_mtime_ns
            if changed == self._scanned:
                return
            names = os.listdir(self._path)
        except OSError:  # nothing is stored, or the folder was removed
            changed, names = -1, []
        self._scanned = changed if time.time_ns() - changed > _SAME_TIME else -1
        self._children, self._with_states = {}, set()
        for name in names:
            self._add(name)

    def _add(self, name: str) -> None:
        if match := _SEGMENT.fullmatch(name):
            parent, num_tokens, key = match.groups()
            self._children.setdefault(parent, set()).add(Segment(parent, int(num_tokens), key))
        elif name.endswith(_STATES):
            self._with_states.add(name.removesuffix(_STATES))

    def _forget(self, name: str) -> None:
        with self._changing:
            if match := _SEGMENT.fullmatch(name):
                parent, num_tokens, key = match.groups()
                self._children.get(parent, set()).discard(Segment(parent, int(num_tokens), key))
            else:
                self._with_states.discard(name.removesuffix(_STATES))


def stored_models(root: Path) -> list[StoredModel]:
    """What a folder has of each model."""
    found: dict[str, list[os.stat_result]] = {}
    for path, status in _files(root):
        found.setdefault(path.parent.name, []).append(status)
    return [
        StoredModel(name, len(files), sum(one.st_size for one in files), max(one.st_mtime for one in files))
        for name, files in sorted(found.items())
    ]


def clear(root: Path, model: str) -> None:
    """Remove a model's files, also while engines use them."""
    if removed := _set_aside(root / model):
        shutil.rmtree(removed, ignore_errors=True)


def _set_aside(folder: Path) -> Path | None:
    removed = folder.with_name(f"{_REMOVED}{folder.name}-{os.getpid()}-{time.time_ns()}")
    try:
        os.replace(folder, removed)
    except OSError:
        return None
    return removed


def _files(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """All segments and states of all models, with leftovers of removed ones."""
    for folder in _listed(root):
        for path in _listed(folder):
            with contextlib.suppress(OSError):
                yield path, path.stat(follow_symlinks=False)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # it is gone, or a file
        return []


def _make_private(folder: Path) -> None:
    """Make a folder that only the process's user can enter. Raises OSError if it belongs to another."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat(follow_symlinks=False)
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    if status.st_mode & 0o077:
        folder.chmod(0o700)
