"""The files of the prefix cache on disk: `SegmentFolder` has the files of one model, and `SlotMemory` copies between
their contents and KV cache slots in memory. There is one subfolder for each model, and in it one file for each segment,
which is a part of a prefix (the beginning of a prompt).

A segment has the KV cache of consecutive tokens. Its file consists of a magic number, the length of a MessagePack
header, the header and the arrays. The header has the tokens and a checksum, so that a damaged file, or a file that
belongs to other tokens, is recognized. For models with recurrent states, further files of the same format have the
states after a prefix.

The name of a segment's file has the key of the prefix before the segment, the number of the segment's tokens, and the
key of the prefix that includes the segment. A key is a hash of all tokens of a prefix. The file names are the only
index. All engines of a host may use the folder at once, because files never change, and appear and disappear as a
whole.

The modification time of a file is the time of its last use. Each segment gets an earlier time than the segment before
it in the prefix, so that the least recently used file is never one on which other files depend.
"""

import contextlib
import logging
import os
import re
import shutil
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from genai_server.engine.kv_cache.buffers import RowStates

log = logging.getLogger(__name__)
_MAGIC = b"GENAIKV2"
_LENGTH_BYTES = 4
# No header of a segment is nearly as long.
_MAX_HEADER = 1024 * 1024
_KEY_BYTES = 16
_SEGMENT = re.compile(r"([0-9a-f]{32})-(\d+)-([0-9a-f]{32})\.kv")
_STATES = ".states"
_REMOVED = ".removed-"
# Seconds to wait for another process that writes.
_PATIENCE = 10.0
# Nanoseconds in which a folder may change again without another modification time.
_SAME_TIME = 100_000_000
# Seconds between the modification times of a segment and of the one behind it.
_LATER = 1e-3


class UnusableSegment(Exception):
    """Raised by `read_segment` for a file that is damaged or has other contents than expected. The message gives the
    reason.
    """


@dataclass(frozen=True)
class ArrayLayout:
    """Shape and numpy type of one array in a segment file, which has only the bytes of its arrays."""

    shape: tuple[int, ...]
    type: Any

    @property
    def num_bytes(self) -> int:
        """Size of the array in the file, in bytes."""
        return int(np.prod(self.shape)) * int(np.dtype(self.type).itemsize)


class _Header(msgspec.Struct, frozen=True, array_like=True):
    # The key of the prefix before these tokens.
    parent: str
    # The token ids, four bytes each, little-endian.
    tokens: bytes
    # CRC-32 of everything before it and of the arrays.
    checksum: int


def root_key(salt: str | None, *, is_long: bool) -> str:
    """Return the key of the empty prefix, from which the keys of all prefixes with the cache salt `salt` are derived.

    Requests with different salts share no cached prefixes; None stands for no salt. `is_long` says whether the KV cache
    was computed with the rope (rotary position embedding) factors for long contexts.
    """
    return _digest(b"root", (salt or "").encode(), b"salted" if salt is not None else b"", b"long" if is_long else b"")


def segment_key(parent: str, tokens: Sequence[int]) -> str:
    """Return the key of the prefix that consists of the prefix with the key `parent` and, after it, `tokens`."""
    return _digest(parent.encode(), _packed(tokens))


def storable(tokens: Sequence[int]) -> Sequence[int]:
    """Return the tokens before the first image, because only the KV cache of these can be stored on disk.

    Features of images have negative token ids, which only this engine process knows.
    """
    return tokens[: next((index for index, token in enumerate(tokens) if token < 0), len(tokens))]


def _digest(*parts: bytes) -> str:
    digest = blake2b(digest_size=_KEY_BYTES, person=b"prefix segment")
    for part in parts:
        digest.update(len(part).to_bytes(_LENGTH_BYTES, "little") + part)
    return digest.hexdigest()


def _packed(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, "<i4").tobytes()


def write_segment(path: Path, parent: str, tokens: Sequence[int], arrays: Sequence[NDArray[Any]]) -> None:
    """Write a segment to a new file at `path`, which only the user of this process can read. Raises OSError if the file
    exists or cannot be written.

    `parent` is the key of the prefix before the segment; `tokens` are the segment's tokens, and `arrays` their KV
    cache.
    """
    blocks = [np.ascontiguousarray(values).reshape(-1).view(np.uint8).data for values in arrays]
    packed = _packed(tokens)
    checksum = _checksum(parent, packed, blocks)
    header = msgspec.msgpack.encode(_Header(parent, packed, checksum))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(_MAGIC + len(header).to_bytes(_LENGTH_BYTES, "little") + header)
        for block in blocks:
            file.write(block)


def read_segment(path: Path, parent: str, tokens: Sequence[int], layout: Sequence[ArrayLayout]) -> list[NDArray[Any]]:
    """Read the segment file at `path`. Returns its arrays.

    `parent` is the key of the prefix before the segment, `tokens` are the tokens that the segment must have, and
    `layout` describes the arrays in the file, in order. The file is read instead of being mapped into memory, because
    an error of the disk would otherwise kill the process. Raises OSError if the file cannot be read, and
    UnusableSegment if it is damaged, belongs to other tokens, or is owned by another user.
    """
    # A pipe would block without O_NONBLOCK. Systems without these flags have neither links nor pipes in folders.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        _check_owner(file)
        start = file.read(len(_MAGIC) + _LENGTH_BYTES)
        length = int.from_bytes(start[len(_MAGIC) :], "little")
        if not start.startswith(_MAGIC) or not 0 < length <= _MAX_HEADER:
            raise UnusableSegment("it does not begin like a segment")
        try:
            header = msgspec.msgpack.decode(file.read(length), type=_Header)
        except ValueError as error:  # also msgspec's errors
            raise UnusableSegment(f"its header is damaged: {error}") from None
        if (header.parent, header.tokens) != (parent, _packed(tokens)):
            raise UnusableSegment("it belongs to other tokens")
        num_bytes = sum(array_layout.num_bytes for array_layout in layout)
        content = bytearray(num_bytes + 1)
        if file.readinto(content) != num_bytes:
            raise UnusableSegment("it has another length")
    block = memoryview(content)[:num_bytes]
    if _checksum(header.parent, header.tokens, [block]) != header.checksum:
        raise UnusableSegment("its checksum is wrong")
    arrays, first = [], 0
    for array_layout in layout:
        arrays.append(
            np.frombuffer(block[first : first + array_layout.num_bytes], array_layout.type).reshape(array_layout.shape)
        )
        first += array_layout.num_bytes
    return arrays


def _checksum(parent: str, tokens: bytes, blocks: Sequence[memoryview]) -> int:
    checksum = zlib.crc32(f"{parent} ".encode() + tokens)
    for block in blocks:
        checksum = zlib.crc32(block, checksum)
    return checksum


def _check_owner(file: BinaryIO) -> None:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise UnusableSegment("it is not a regular file")
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise UnusableSegment("it belongs to another user")


# Segments have about this many bytes, because a sequence that ends waits until the one being copied is complete.
_SEGMENT_BYTES = 4 * 1024 * 1024
_MIN_TOKENS, _MAX_TOKENS = 16, 256


class SlotMemory:
    """Copies the KV cache of consecutive tokens between a KV cache slot and arrays that are stored in a segment file.

    `arrays` are the KV cache buffers of all slots: keys and values of each layer, each of the shape [slots, kv_heads,
    length, cache_width] (`DecoderGraph.cache_width`). A copy consists of one array [kv_heads, tokens, cache_width] of
    the numpy type `stored_type` for each buffer. `states` are the recurrent states of all slots; None if the model has
    none. `segment_bytes` is about the size of a segment's copy, from which the number of its tokens, `segment_tokens`,
    follows.
    """

    def __init__(
        self,
        arrays: Sequence[NDArray[Any]],
        states: RowStates | None,
        stored_type: Any,
        segment_bytes: int = _SEGMENT_BYTES,
    ) -> None:
        self._arrays = arrays
        self._type = np.dtype(stored_type)
        self.bytes_per_token: int = sum(array.shape[1] * array.shape[3] * self._type.itemsize for array in arrays)
        fitting = max(1, segment_bytes // self.bytes_per_token)
        # A power of two: whole groups of tokens, and whole blocks of KV events.
        self.segment_tokens = max(_MIN_TOKENS, min(_MAX_TOKENS, 1 << (fitting.bit_length() - 1)))
        self.has_states = states is not None
        self.state_layout = [
            ArrayLayout(array.shape[1:], array.dtype) for array in ([] if states is None else states.arrays)
        ]

    def layout(self, num_tokens: int) -> list[ArrayLayout]:
        """Return the shapes and types of the arrays in a segment file with the KV cache of `num_tokens` tokens, in
        order.
        """
        return [ArrayLayout((array.shape[1], num_tokens, array.shape[3]), self._type) for array in self._arrays]

    def read(self, slot: int, first: int, end: int) -> list[NDArray[Any]]:
        """Return a copy of the KV cache of some tokens in the slot number `slot`, from the token with the index `first`
        to the one before the index `end`.

        The result has two arrays [kv_heads, tokens, cache_width] for each layer, with the keys and the values.
        """
        return [array[slot, :, first:end].astype(self._type) for array in self._arrays]

    def write(self, slot: int, first: int, end: int, values: Sequence[NDArray[Any]], skipped: int) -> None:
        """Write the KV cache of some tokens to the slot number `slot`, from the token with the index `first` to the one
        before the index `end`.

        `values` are arrays [kv_heads, tokens, cache_width] as `read` returns them. Their first `skipped` tokens are not
        written.
        """
        for array, part in zip(self._arrays, values, strict=True):
            array[slot, :, first:end] = part[:, skipped : skipped + end - first]


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of a stored prefix, whose KV cache is in one file. `parent` and `key` name the file.

    `parent` is the key of the prefix before these tokens, and `key` the key of the prefix that ends with them.
    """

    parent: str
    num_tokens: int
    key: str

    @property
    def name(self) -> str:
        """Name of the segment's file: the key of the prefix before it, its number of tokens, and the key of the prefix
        with it.
        """
        return f"{self.parent}-{self.num_tokens}-{self.key}.kv"


@dataclass(frozen=True)
class StoredModel:
    """What the prefix cache on disk has for one model, for the command line and operators: the number and size of
    files, and the time of their last use.
    """

    name: str
    num_files: int
    num_bytes: int
    # Seconds since 1970.
    last_used: float


class SegmentFolder:
    """The stored segments of one model, in the subfolder `model` of `root`. The files of all models below `root` have
    at most `max_bytes` bytes together.

    Any thread may use the object. `now` returns the time in seconds since 1970. The constructor raises OSError if the
    folder cannot be created, or belongs to another user.
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
        """Maximum total size of the files of all models in bytes, by `max_bytes` and by the free space of the disk.
        Raises OSError if the free space is unknown.
        """
        return min(self.max_bytes, self.num_bytes + shutil.disk_usage(self.root).free)

    def longest(self, root: str, tokens: Sequence[int], *, states: bool) -> list[Segment]:
        """Find the longest stored prefix of `tokens`. Returns its segments in order; an empty list if no prefix is
        stored.

        `root` is the key of the empty prefix (`root_key`). With `states`, only prefixes count after which the recurrent
        states are stored, too.
        """
        chain: list[Segment] = []
        best: list[Segment] = []
        parent, position = root, 0
        with self._changing:
            self._scan()
            while matching := [
                segment
                for segment in self._children.get(parent, ())
                if segment_key(parent, tokens[position : position + segment.num_tokens]) == segment.key
            ]:
                for segment in sorted(matching, key=lambda segment: segment.num_tokens):
                    if not states or segment.key in self._with_states:
                        best = [*chain, segment]
                chain.append(max(matching, key=lambda segment: segment.num_tokens))
                parent, position = chain[-1].key, position + chain[-1].num_tokens
        return best

    def has(self, segment: Segment) -> bool:
        """Return whether `segment` is stored, as far as this process knows. Other processes may have stored or removed
        it since this process last read the names of the files.
        """
        return segment in self._children.get(segment.parent, ())

    def has_states(self, key: str) -> bool:
        """Return whether the recurrent states after the prefix with the key `key` are stored, as far as this process
        knows. Other processes may have stored or removed them since this process last read the names of the files.
        """
        return key in self._with_states

    def read(self, segment: Segment, tokens: Sequence[int], layout: Sequence[ArrayLayout]) -> list[NDArray[Any]] | None:
        """Return the arrays with the KV cache of `segment`, or None if its file is missing or unusable. An unusable
        file is removed.

        `tokens` are the tokens that the segment must have; `layout` describes the arrays in the file, in order.
        """
        return self._read(segment.name, segment.parent, tokens, layout)

    def read_states(self, key: str, layout: Sequence[ArrayLayout]) -> list[NDArray[Any]] | None:
        """Return the recurrent states after the prefix with the key `key`, or None if their file is missing or
        unusable. An unusable file is removed.

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
        """Return a context manager within which files with up to `num_bytes` bytes together may be written by `write`
        and `write_states`.

        Only one process at a time is in such a context. On entry, the least recently used files of all models are
        removed to make room. Raises OSError if the folder cannot be used, or if another process writes for longer than
        _PATIENCE seconds.
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
        """Store `segment` with its tokens and the arrays of its KV cache. Must be called within the context `writing`.
        Raises OSError if the file cannot be written.
        """
        self._write(segment.name, segment.parent, tokens, arrays)

    def write_states(self, key: str, arrays: Sequence[NDArray[Any]]) -> None:
        """Store the recurrent states after the prefix with the key `key`. Must be called within the context `writing`.
        Raises OSError if the file cannot be written.
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
        """Remove the least recently used files of all models until `num_bytes` further bytes can be written within the
        limit. Raises OSError if a file cannot be removed.
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
        """Record that a prefix was just used, by the modification times of its files, so that they are removed late.

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
        """Rename the folder that has all files of the model, so that no engine uses these files any more.

        Returns the path of the renamed folder, which the caller must delete, or None if nothing was stored.
        """
        removed = _set_aside(self._path)
        with self._changing:
            self._scan()
        return removed

    def _scan(self) -> None:
        """Read the names of the model's files again, if its folder has changed since they were last read. The caller
        must hold the lock `_changing`.
        """
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
    """Return a summary of each model that has stored prefixes below the folder `root`, sorted by name."""
    by_model: dict[str, list[os.stat_result]] = {}
    for path, status in _files(root):
        by_model.setdefault(path.parent.name, []).append(status)
    return [
        StoredModel(name, len(files), sum(file.st_size for file in files), max(file.st_mtime for file in files))
        for name, files in sorted(by_model.items())
    ]


def clear(root: Path, model: str) -> None:
    """Remove the stored prefixes of the model `model` (the name of its subfolder) from the folder `root`. Engines may
    use the folder at the same time. Does nothing if the model has none.
    """
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
    """Yield the path and the status of each file in the subfolders of `root`, one for each model. Subfolders whose
    deletion was interrupted are included.
    """
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
    """Create a folder that only the user of this process can enter, or take that permission from others if the folder
    exists. Raises OSError if this is impossible, or if the folder belongs to another user.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat(follow_symlinks=False)
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    if status.st_mode & 0o077:
        folder.chmod(0o700)
