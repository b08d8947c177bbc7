"""Loads stored prefixes from disk, in a separate thread, into KV cache slots (the memory of single sequences).

A sequence takes part in no step while its prefix is loaded. It waits at most as long as the model would take to read
the prefix itself.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from math import inf

from genai_server.engine.disk_cache.segment_file import SlotMemory, root_key, storable
from genai_server.engine.disk_cache.segment_folder import Segment, SegmentFolder
from genai_server.engine.kv_cache.buffers import Saved
from genai_server.engine.kv_cache.kv_slots import KvSlots, Slot
from genai_server.engine.sequence import Sequence, common_length
from genai_server.timing import Clock

log = logging.getLogger(__name__)
# Seconds to wait for a prefix as long as it is unknown how fast the model reads.
_PATIENCE = 5.0
# One of this number of prefixes that would be left out is loaded, because the disk may have become faster.
_TRIED_AGAIN = 8
# Weight of the newest measurement in the moving average.
_WEIGHT = 0.3


@dataclass
class _Load:
    """A load of a prefix from disk into the KV cache slot of a sequence, from its start to its end."""

    sequence: Sequence
    slot: Slot
    # The sequence's tokens before its first image. The slot may already have some of them.
    tokens: list[int]
    # Tokens are loaded from the index `first` to before the index `end`.
    first: int
    end: int
    # Time of the loader's clock after which the model reads what has not been loaded.
    deadline: float
    # Seconds in which the model reads one token; 0 if unknown.
    seconds_per_token: float
    # Sequences whose prompts begin with the same tokens. They wait, and then copy the prefix from the slot.
    followers: set[Sequence] = field(default_factory=set)
    # Held while the following attributes are changed or the slot is written to, which must not happen once `is_over` is
    # set.
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_over: bool = False
    num_loaded: int = 0
    states: Saved | None = None


class PrefixLoader:
    """Loads the stored prefixes of sequences. Its methods are called by the thread of the engine's loop; the executor
    `thread` reads the files.
    """

    def __init__(
        self, folder: SegmentFolder, memory: SlotMemory, slots: KvSlots, thread: Executor, clock: Clock
    ) -> None:
        self._folder = folder
        self._memory = memory
        self._slots = slots
        self._clock = clock
        self._loads: dict[int, _Load] = {}  # by the sequence's id
        self._thread = thread
        # Prefixes and tokens that were loaded, and prefixes that were stored, but faster to read by the model.
        self.num_prefixes = self.num_tokens = self.num_left_out = 0
        # Spent loading.
        self.seconds = 0.0
        # Measured; 0 before the first load.
        self.bytes_per_second = 0.0

    def fetch(self, sequence: Sequence, seconds_per_token: float, done: Callable[[], None]) -> bool:
        """Start to load the stored prefix of a sequence that has a KV cache slot. Returns whether the sequence must
        wait.

        `done` is called in another thread when the load has ended; then `take` must be called. A sequence whose prompt
        begins like that of a sequence whose prefix is being loaded waits for this load, without a call of `done`.
        `seconds_per_token` is how long the model takes to read one prompt token; 0 if unknown.
        """
        slot = self._slots.of(sequence.id)
        tokens = list(storable(sequence.tokens))
        # At least two tokens are left to read, as in KvSlots.acquire.
        first, end = len(slot.tokens), min(len(tokens), len(sequence.tokens) - 2)
        if end - first < self._memory.segment_tokens:
            return False
        sequence.is_loading = True
        for load in self._loads.values():
            if (load.slot.salt, load.slot.is_long) == (slot.salt, slot.is_long) and (
                common_length(load.tokens, tokens) >= first + self._memory.segment_tokens
            ):
                load.followers.add(sequence)
                return True
        deadline = self._clock() + (seconds_per_token * (end - first) or _PATIENCE)
        self._slots.reserve(sequence.id, end - first)
        load = _Load(sequence, slot, tokens, first, end, deadline, seconds_per_token)
        self._loads[sequence.id] = load
        self._thread.submit(self._run, load, done)
        return True

    def take(self, sequence: Sequence) -> int:
        """End the load for a sequence, and count what was loaded as part of the sequence's slot. The sequence stops
        waiting.

        Returns the number of loaded tokens, 0 if nothing was loaded.
        """
        load = self.cancel(sequence)
        if load is None:
            return 0
        loaded = load.tokens[load.first : load.first + load.num_loaded]
        self._slots.add_loaded(sequence.id, loaded, load.states)
        self.num_prefixes += bool(loaded)
        self.num_tokens += len(loaded)
        return len(loaded)

    def late(self, now: float) -> list[Sequence]:
        """Sequences whose prefix is still being loaded at the time `now`, although the deadline of the load has passed
        by then.
        """
        return [load.sequence for load in self._loads.values() if now >= load.deadline]

    @property
    def next_deadline(self) -> float:
        """Earliest deadline of the running loads, by the loader's clock, from which on `late` returns a sequence;
        infinite while nothing is loaded.
        """
        return min((load.deadline for load in self._loads.values()), default=inf)

    def cancel(self, sequence: Sequence) -> _Load | None:
        """Stop the load for a sequence, so that nothing more is written to the sequence's slot. Returns the load, or
        None if there was none.

        The sequence, and others that waited for the same load, stop waiting.
        """
        sequence.is_loading = False
        for other in self._loads.values():
            other.followers.discard(sequence)  # it may wait for a load of its own when that one ends
        load = self._loads.pop(sequence.id, None)
        if load is not None:
            with load.lock:
                load.is_over = True
            for follower in load.followers:
                follower.is_loading = False
        return load

    def _run(self, load: _Load, done: Callable[[], None]) -> None:
        started = self._clock()
        try:
            num_bytes = self._load(load)
        except Exception:
            log.exception("a stored prefix could not be loaded")
        else:
            seconds = self._clock() - started
            if num_bytes and seconds > 0:
                self.seconds += seconds
                before = self.bytes_per_second or num_bytes / seconds
                self.bytes_per_second = before + _WEIGHT * (num_bytes / seconds - before)
        done()

    def _load(self, load: _Load) -> int:
        """Load the longest stored prefix of a sequence's tokens, unless the model would read the tokens faster. Returns
        the number of bytes read from the disk.
        """
        memory, root = self._memory, root_key(load.slot.salt, is_long=load.slot.is_long)
        # States are those behind a complete segment.
        tokens = load.tokens[: load.end] if memory.has_states else load.tokens
        segments = self._folder.longest(root, tokens, states=memory.has_states)
        load.end = min(load.end, sum(segment.num_tokens for segment in segments))
        if load.end - load.first < memory.segment_tokens:
            return 0
        if load.seconds_per_token and memory.bytes_per_token > load.seconds_per_token * (self.bytes_per_second or inf):
            self.num_left_out += 1
            if self.num_left_out % _TRIED_AGAIN:
                return 0
        num_bytes = self._load_segments(load, segments)
        self._folder.touch(segments, states=memory.has_states)
        return num_bytes

    def _load_segments(self, load: _Load, segments: list[Segment]) -> int:
        num_bytes = end = 0
        loaded = load.first
        for segment in segments:
            start, end = end, end + segment.num_tokens
            if end <= loaded or loaded == load.end:
                continue
            values = self._folder.read(segment, load.tokens[start:end], self._memory.layout(segment.num_tokens))
            if values is None:
                return num_bytes
            num_bytes += sum(part.nbytes for part in values)
            stop = min(end, load.end)
            with load.lock:
                if load.is_over or stop <= loaded:
                    return num_bytes
                self._memory.write(load.slot.index, loaded, stop, values, loaded - start)
                loaded = stop
                if not self._memory.has_states:
                    load.num_loaded = loaded - load.first
        if self._memory.has_states:
            states = self._folder.read_states(segments[-1].key, self._memory.state_layout)
            with load.lock:
                if states is not None and not load.is_over:
                    load.num_loaded = loaded - load.first
                    load.states = states
        return num_bytes
