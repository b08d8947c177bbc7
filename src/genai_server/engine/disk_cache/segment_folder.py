"""Folder of stored prefixes: one subfolder for each model, and in it one file for each segment.

The name of a segment's file has the key of the prefix before the segment, the number of the segment's tokens, and the
key of the prefix including the segment. The file names are the only index. Models with recurrent states have further
files: the states after a prefix, named after the prefix. All engines of a host may use the folder at once, because
files never change, and appear and disappear as a whole.

The modification time of a file is the time of its last use. Each segment is dated before the segment that it continues.
So no other file depends on the least recently used one.
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
    """Consecutive tokens of a stored prefix.

    `parent` is the key of the prefix before these tokens, and `key` the key of the prefix that ends with them.
    """

    parent: str
    num_tokens: int
    key: str

    @property
    def name(self) -> str:
        """Name of the segment's file."""
        return f"{self.parent}-{self.num_tokens}-{self.key}.kv"


@dataclass(frozen=True)
class StoredModel:
    """Summary of what the folder stores for one model."""

    name: str
    num_files: int
    num_bytes: int
    # Seconds since 1970.
    last_used: float


class SegmentFolder:
    """Stored segments of one model. The files of all models in the folder together have `max_bytes` at most.

    Any thread may use the object. Raises OSError if the folder cannot be made, or if other users could read it.
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
        """Maximum bytes of all files, limited by the setting and by the free space of the disk. Raises OSError."""
        return min(self.max_bytes, self.num_bytes + shutil.disk_usage(self.root).free)

    def longest(self, root: str, tokens: Sequence[int], *, states: bool) -> list[Segment]:
        """Find the longest stored prefix of `tokens`. Returns its segments in order, or an empty list if there is none.

        `root` is the key of the empty prefix (`root_key`). With `states`, only prefixes after which recurrent states
        are stored count.
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
        """Whether a segment was stored at the last scan of the folder. Other processes may have changed that since."""
        return segment in self._children.get(segment.parent, ())

    def has_states(self, key: str) -> bool:
        """Whether the recurrent states after the prefix with this key were stored at the last scan of the folder."""
        return key in self._with_states

    def read(self, segment: Segment, tokens: Sequence[int], layout: Sequence[ArrayLayout]) -> list[NDArray[Any]] | None:
        """Read the KV cache arrays of a segment with these tokens. Returns None if the file is missing or unusable.

        `layout` describes the arrays in the file, in order.
        """
        return self._read(segment.name, segment.parent, tokens, layout)

    def read_states(self, key: str, layout: Sequence[ArrayLayout]) -> list[NDArray[Any]] | None:
        """Read the recurrent states after the prefix with this key. Returns None if the file is missing or unusable.

        `layout` describes the arrays in the file, in order.
        """
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
        """Context in which up to `num_bytes` may be written. Raises OSError.

        Only one process at a time is in such a context. The least recently used files of all models are removed to make
        room.
        """
        try:
            with self._lock:
                _make_private(self._path)
                self._temporary.unlink(missing_ok=True)  # of a killed process, since this one has the lock
                self._make_room(num_bytes)
                yield
        except Timeout:
            raise OSError(f"another process has {self._lock.lock_file} for {_PATIENCE:.0f} s") from None

    def write(self, segment: Segment, tokens: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None:
        """Store a segment. Must be called within the context `writing`. Raises OSError."""
        self._write(segment.name, segment.parent, tokens, arrays)

    def write_states(self, key: str, arrays: Sequence[NDArray[Any]]) -> None:
        """Store the recurrent states after the prefix with this key. Must be called within the context `writing`.

        Raises OSError.
        """
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
        """Remove the least recently used files of all models until `num_bytes` more fit within the limit."""
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
        """Record the use of a prefix in the modification times of its files.

        With `states`, the file with the states after the prefix is included.
        """
        now = self._now()
        names = [segment.name for segment in segments]
        names += [f"{segments[-1].key}{_STATES}"] if segments and states else []
        for number, name in enumerate(names):
            at = now - number * _LATER
            with contextlib.suppress(OSError):  # it is gone
                os.utime(self._path / name, (at, at))

    def set_aside(self) -> Path | None:
        """Make all files of the model unusable at once by renaming their folder.

        Returns the renamed folder, which the caller must delete, or None if nothing was stored.
        """
        removed = _set_aside(self._path)
        with self._changing:
            self._scan()
        return removed

    def _scan(self) -> None:
        """Read the names of all files again if the folder has changed since the last scan."""
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
    """Summary of each model that has files in the folder, sorted by name."""
    found: dict[str, list[os.stat_result]] = {}
    for path, status in _files(root):
        found.setdefault(path.parent.name, []).append(status)
    return [
        StoredModel(name, len(files), sum(one.st_size for one in files), max(one.st_mtime for one in files))
        for name, files in sorted(found.items())
    ]


def clear(root: Path, model: str) -> None:
    """Remove the stored prefixes of a model from the folder `root`. Engines may use the folder at the same time."""
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
    """Path and status of each file of all models, including the remains of folders that were being deleted."""
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
    """Make a folder that only the user of this process can enter. Raises OSError if it belongs to another user."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat(follow_symlinks=False)
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    if status.st_mode & 0o077:
        folder.chmod(0o700)
