"""File format of a segment, a part of a stored prefix, and copies between its arrays and KV cache slots in memory.

A segment has the KV cache of consecutive tokens, or the recurrent states after them. Its file consists of a magic
number, the length of a MessagePack header, the header and the arrays. The header has the tokens and a checksum, so that
a damaged file, or a file that belongs to other tokens, is recognized.
"""

import os
import stat
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from genai_server.engine.kv_cache.buffers import RowStates

_MAGIC = b"GENAIKV2"
_LENGTH_BYTES = 4
# No header of a segment is nearly as long.
_MAX_HEADER = 1024 * 1024
_KEY_BYTES = 16


class UnusableSegment(Exception):
    """Raised, with the reason, for a segment file that is damaged or has other contents than its name says."""


@dataclass(frozen=True)
class ArrayLayout:
    """Shape and numpy type of one array in a segment file."""

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
    """Key of the empty prefix. The keys of all prefixes with the cache salt `salt` are derived from it.

    Requests with different salts share no cached prefixes; None stands for no salt. `is_long` says whether the KV cache
    was computed with the rope (rotary position embedding) factors for long contexts.
    """
    return _digest(b"root", (salt or "").encode(), b"salted" if salt is not None else b"", b"long" if is_long else b"")


def segment_key(parent: str, tokens: Sequence[int]) -> str:
    """Key of a prefix that consists of the prefix with the key `parent` and `tokens` after it."""
    return _digest(parent.encode(), _packed(tokens))


def storable(tokens: Sequence[int]) -> Sequence[int]:
    """The tokens before the first image, because only their KV cache can be stored on disk.

    Image features have negative token ids, which are valid in one engine process only.
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
    """Write a segment to a new file. Raises OSError.

    `parent` is the key of the prefix before the segment; `tokens` and `arrays` are the segment's contents. Only the
    user of this process can read the file.
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
    """Read the arrays of the segment file at `path`.

    `parent` is the key of the prefix before the segment, `tokens` are the tokens that the segment must have, and
    `layout` describes the arrays in the file, in order. The file is read instead of being mapped into memory, because
    an error of the disk would otherwise kill the process. Raises OSError, and UnusableSegment if the file is damaged,
    belongs to other tokens, or is owned by another user.
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
        num_bytes = sum(one.num_bytes for one in layout)
        content = bytearray(num_bytes + 1)
        if file.readinto(content) != num_bytes:
            raise UnusableSegment("it has another length")
    block = memoryview(content)[:num_bytes]
    if _checksum(header.parent, header.tokens, [block]) != header.checksum:
        raise UnusableSegment("its checksum is wrong")
    arrays, first = [], 0
    for one in layout:
        arrays.append(np.frombuffer(block[first : first + one.num_bytes], one.type).reshape(one.shape))
        first += one.num_bytes
    return arrays


def _checksum(parent: str, tokens: bytes, blocks: Sequence[memoryview]) -> int:
    found = zlib.crc32(f"{parent} ".encode() + tokens)
    for block in blocks:
        found = zlib.crc32(block, found)
    return found


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
    """Copies the KV cache of consecutive tokens from a KV cache slot to new arrays, or from such arrays to a slot.

    `arrays` are the KV cache buffers of all slots: keys and values of each layer, each of the shape [slots, kv_heads,
    length, cache_width] (`DecoderGraph.cache_width`). A copy consists of one array [kv_heads, tokens, cache_width] of
    the type `stored_type` for each buffer. `states` are the recurrent states of all slots; None if the model has none.
    `segment_bytes` is the size of a segment's copy, from which the number of its tokens follows.
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
        """Shapes and types of the arrays in a segment file with the KV cache of `num_tokens` tokens, in order."""
        return [ArrayLayout((array.shape[1], num_tokens, array.shape[3]), self._type) for array in self._arrays]

    def read(self, slot: int, first: int, end: int) -> list[NDArray[Any]]:
        """Copy the KV cache of the tokens of a slot from index `first` to before index `end`.

        Returns two arrays [kv_heads, tokens, cache_width] for each layer, with the keys and the values.
        """
        return [array[slot, :, first:end].astype(self._type) for array in self._arrays]

    def write(self, slot: int, first: int, end: int, values: Sequence[NDArray[Any]], skipped: int) -> None:
        """Write the KV cache of the tokens of a slot from index `first` to before index `end`.

        `values` are arrays [kv_heads, tokens, cache_width] as `read` returns them; their first `skipped` tokens are not
        written.
        """
        for array, part in zip(self._arrays, values, strict=True):
            array[slot, :, first:end] = part[:, skipped : skipped + end - first]
