"""Stores the KV cache of prefixes on disk, in a separate thread, if they stay in memory long enough.

A prefix is stored once the product of its number of tokens and the seconds that they have been in a KV cache slot is
large enough: a long prefix soon, a short one only if it stays for long.
"""

import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

from genai_server.engine.disk_cache.segment_file import SlotMemory, root_key, segment_key, storable
from genai_server.engine.disk_cache.segment_folder import Segment, SegmentFolder
from genai_server.engine.kv_cache.buffers import Saved
from genai_server.engine.kv_cache.kv_slots import KvSlots, Slot
from genai_server.engine.sequence import common_length
from genai_server.timing import Clock

log = logging.getLogger(__name__)
# The product of unstored tokens and seconds from which a prefix is stored.
_MIN_WORTH = 10_000.0
# The share of all files that one prefix may have.
_MAX_SHARE = 0.5
# Seconds until a disk that has refused a prefix is tried again.
_PAUSE = 60.0


@dataclass
class _Seen:
    """The tokens of a KV cache slot when the storer last checked the slot, and how many of them were stored."""

    tokens: list[int]
    # Time of the clock at which the tokens that are not stored yet were first seen.
    since: float
    num_stored: int = 0


@dataclass(frozen=True)
class _Prefix:
    """A prefix that is to be stored: the first `length` tokens of a KV cache slot."""

    slot: Slot
    # The very list of the slot. The slot gets another list before the memory of its tokens is overwritten. So a copy of
    # the memory is valid if the slot still has the same list afterwards.
    tokens: list[int]
    length: int
    root: str
    checkpoints: dict[int, Saved]
    num_clears: int


class PrefixStorer:
    """Stores prefixes from KV cache slots on disk. Its methods are called by the thread of the engine's loop; the
    executor `thread` writes the files.
    """

    def __init__(
        self, folder: SegmentFolder, memory: SlotMemory, slots: KvSlots, thread: Executor, clock: Clock
    ) -> None:
        self._folder = folder
        self._memory = memory
        self._slots = slots
        self._clock = clock
        self._num_clears = 0
        self._paused_until = 0.0
        self._thread = thread
        self._forget()
        self.num_tokens = 0  # that were stored
        # Why the last prefix was not stored; "" if it was.
        self.error = ""

    def store_due(self) -> None:
        """Start to store the prefixes that have been in memory for long enough. Must be called about once a second."""
        now = self._clock()
        for seen, slot in zip(self._seen, self._slots.slots, strict=True):
            if slot.tokens is not seen.tokens:
                common = common_length(slot.tokens, seen.tokens)
                if 2 * common < len(slot.tokens):
                    seen.since = now
                seen.tokens, seen.num_stored = slot.tokens, min(seen.num_stored, common)
            length = max(slot.checkpoints, default=0) if self._memory.has_states else len(slot.tokens)
            num_unstored = length - seen.num_stored
            # Those of low priority would evict the others.
            is_worth = not slot.low_priority and num_unstored * (now - seen.since) >= _MIN_WORTH
            if num_unstored >= self._memory.segment_tokens and is_worth and now >= self._paused_until:
                seen.num_stored, seen.since = length, now
                root, checkpoints = root_key(slot.salt, is_long=slot.is_long), dict(slot.checkpoints)
                found = _Prefix(slot, slot.tokens, length, root, checkpoints, self._num_clears)
                self._thread.submit(self._run, found)

    def clear(self) -> bool:
        """Remove all stored prefixes of the model. Returns whether there were any."""
        self._num_clears += 1
        self._forget()
        removed = self._folder.set_aside()
        if removed is not None:
            self._thread.submit(shutil.rmtree, removed, ignore_errors=True)
        return removed is not None

    def _forget(self) -> None:
        now = self._clock()
        self._seen = [_Seen(slot.tokens, now) for slot in self._slots.slots]

    def _run(self, prefix: _Prefix) -> None:
        try:
            self._store(prefix)
            self.error = ""
        except FileNotFoundError:
            # Somebody has removed the model's files in the meantime: a reset, or another process.
            log.info("a prefix was not stored, because what is stored was removed at the same time")
        except OSError as error:
            log.warning("no prefix is stored for %.0f s: %s", _PAUSE, error)
            self._paused_until = self._clock() + _PAUSE
            self.error = str(error)
        except Exception:
            log.exception("a prefix could not be stored")

    def _store(self, prefix: _Prefix) -> None:
        segments = list(self._segments(prefix))
        lacking = [entry for entry in segments if not self._folder.has(entry[1])]
        states = {
            segment.key: prefix.checkpoints[start + segment.num_tokens]
            for start, segment in segments
            if start + segment.num_tokens in prefix.checkpoints and not self._folder.has_states(segment.key)
        }
        self._folder.touch([segment for _, segment in segments], states=False)
        num_bytes = sum(segment.num_tokens for _, segment in lacking) * self._memory.bytes_per_token
        num_bytes += sum(values.nbytes for saved in states.values() for values in saved)
        with self._folder.writing(num_bytes):
            for start, segment in lacking:
                end = start + segment.num_tokens
                arrays = self._memory.read(prefix.slot.index, start, end)
                if prefix.slot.tokens is not prefix.tokens or prefix.num_clears != self._num_clears:
                    return
                self._folder.write(segment, prefix.tokens[start:end], arrays)
                self.num_tokens += segment.num_tokens
            for key, saved in states.items():
                self._folder.write_states(key, saved)
        self._folder.touch([segment for _, segment in segments], states=self._memory.has_states)

    def _segments(self, prefix: _Prefix) -> Iterator[tuple[int, Segment]]:
        """Yield the segments in which a prefix is stored, each with the number of the prefix's tokens before the
        segment.

        Segments have the same length, except additional ones that end where recurrent states are saved (a checkpoint).
        """
        tokens = storable(prefix.tokens[: prefix.length])
        parent, full = prefix.root, self._memory.segment_tokens
        max_tokens = int(_MAX_SHARE * self._folder.limit) // self._memory.bytes_per_token
        for start in range(0, min(len(tokens), max_tokens), full):
            ends = [length for length in prefix.checkpoints if start < length < start + full and length <= len(tokens)]
            if start + full <= len(tokens):
                ends.append(start + full)
            for end in ends:
                key = segment_key(parent, tokens[start:end])
                yield start, Segment(parent, end - start, key)
            if start + full <= len(tokens):
                parent = key
