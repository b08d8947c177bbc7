"""Folder of stored prefixes: one subfolder for each model, and in it one file for each segment (a part of a prefix).

The name of a segment's file has the key of the prefix before the segment, the number of the segment's tokens, and the
key of the prefix including the segment. There is no other index than the file names. For models with recurrent states,
further files have the states after a prefix and are named after the prefix. All engines of a host may use the folder at
once, because files never change, and appear and disappear as a whole.

The modification time of a file is the time of its last use. Each segment gets an earlier time than the segment before
it in the prefix, so that the least recently used file is never one on which other files depend.
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
    """Consecutive tokens of a stored prefix, by which the file with their KV cache is named.

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
    """What the folder of stored prefixes has for one model: the number and size of files, and their last use."""

    name: str
    num_files: int
    num_bytes: int
    # Seconds since 1970.
    last_used: float


class SegmentFolder:
    """The stored segments of one model, `model`. The files of all models below `root` have at most `max_bytes` bytes
    together.

    Any thread may use the object. The constructor raises OSError if the folder cannot be created, or belongs to another
    user.
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
        """Maximum total size of all models' files in bytes, by the setting and by the free space of the disk. Raises
        OSError.
        """
        return min(self.max_bytes, self.num_bytes + shutil.disk_usage(self.root).free)

    def longest(self, root: str, tokens: Sequence[int], *, states: bool) -> list[Segment]:
        """Find the longest stored prefix of `tokens`. Returns its segments in order, or an empty list if there is none.

        `root` is the key of the empty prefix (`root_key`). With `states`, only prefixes count whose recurrent states
        are stored, too.
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
        """Whether a segment is stored, as far as this process knows. Other processes may have stored or removed it
        since this process last read the names of the files.
        """
        return segment in self._children.get(segment.parent, ())

    def has_states(self, key: str) -> bool:
        """Whether the recurrent states after the prefix with the key `key` are stored, as far as this process knows
        (see `has`).
        """
        return key in self._with_states

    def read(self, segment: Segment, tokens: Sequence[int], layout: Sequence[ArrayLayout]) -> list[NDArray[Any]] | None:
        """Read the KV cache of a segment. Returns None if the file is missing or unusable.

        `tokens` are the tokens that the segment must have; `layout` describes the arrays in the file, in order.
        """
        return self._read(segment.name, segment.parent, tokens, layout)

    def read_states(self, key: str, layout: Sequence[ArrayLayout]) -> list[NDArray[Any]] | None:
        """Read the recurrent states after the prefix with the key `key`. Returns None if the file is missing or
        unusable.

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
        """Context manager within which up to `num_bytes` bytes may be written. Raises OSError, also if another process
        writes for longer than _PATIENCE seconds.

        Only one process at a time is in such a context. On entry, the least recently used files of all models are
        removed to make room.
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
        """Store a segment with its tokens and its KV cache. Must be called within the context `writing`. Raises
        OSError.
        """
        self._write(segment.name, segment.parent, tokens, arrays)

    def write_states(self, key: str, arrays: Sequence[NDArray[Any]]) -> None:
        """Store the recurrent states after the prefix with the key `key`. Must be called within the context `writing`.

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
        """Remove the least recently used files of all models until another `num_bytes` bytes can be written within the
        limit.
        """
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
        """Set the modification times of a prefix's files, because the prefix was just used.

        `segments` are the prefix's segments in order. With `states`, the file with the recurrent states after the
        prefix is included.
        """
        now = self._now()
        names = [segment.name for segment in segments]
        names += [f"{segments[-1].key}{_STATES}"] if segments and states else []
        for number, name in enumerate(names):
            at = now - number * _LATER
            with contextlib.suppress(OSError):  # it is gone
                os.utime(self._path / name, (at, at))

    def set_aside(self) -> Path | None:
        """Rename the folder with all files of the model, so that no engine uses them any more.

        Returns the path of the renamed folder, which the caller must delete, or None if nothing was stored.
        """
        removed = _set_aside(self._path)
        with self._changing:
            self._scan()
        return removed

    def _scan(self) -> None:
        """Read the names of the model's files again if its folder has changed since they were last read."""
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
    """Summary of each model that has stored prefixes below the folder `root`, sorted by name."""
    found: dict[str, list[os.stat_result]] = {}
    for path, status in _files(root):
        found.setdefault(path.parent.name, []).append(status)
    return [
        StoredModel(name, len(files), sum(one.st_size for one in files), max(one.st_mtime for one in files))
        for name, files in sorted(found.items())
    ]


def clear(root: Path, model: str) -> None:
    """Remove the stored prefixes of a model from the folder `root`, even if engines use the folder at the same time."""
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
    """Yield the path and status of each file of all models. Folders whose deletion was interrupted are included."""
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
    """Create a folder that only the user of this process can enter. Raises OSError if it exists and belongs to another
    user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat(follow_symlinks=False)
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    if status.st_mode & 0o077:
        folder.chmod(0o700)
