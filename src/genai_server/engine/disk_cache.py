"""The prefix cache on disk of one engine (`DiskCache`): it stores the KV cache of prompts' beginnings (prefixes) in
files, and loads it again for later prompts. One thread stores (`PrefixStorer`) and another one loads (`PrefixLoader`).
disk_cache_files.py has the files themselves.

A prefix is stored once the product of its number of tokens and the seconds that they have been in a KV cache slot (the
memory of one sequence) is large enough: a long prefix soon, a short one only if it stays for long. While the prefix of
a sequence is loaded, the model does not read the sequence. A load may take at most as long as the model would take to
read the prefix itself.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import numpy as np

from genai_server import __version__
from genai_server.engine.disk_cache_files import Segment, SegmentFolder, SlotMemory, root_key, segment_key, storable
from genai_server.engine.host import lower_cpu_priority
from genai_server.engine.kv_cache.buffers import CpuBuffers, Saved
from genai_server.engine.kv_cache.kv_slots import KvSlots, Slot
from genai_server.engine.model.native_library import library_key
from genai_server.engine.model.session_options import num_threads
from genai_server.engine.model.weights import model_key
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.engine.sequence import Sequence, common_prefix_length
from genai_server.messages.engine_protocol import DiskCacheFigures
from genai_server.messages.launch import EngineSpec
from genai_server.model_files.pooling_model import Task, task_of
from genai_server.timing import Clock

log = logging.getLogger(__name__)
# The product of unstored tokens and seconds from which a prefix is stored.
_MIN_WORTH = 10_000.0
# The share of all files that one prefix may have.
_MAX_SHARE = 0.5
# Seconds until a disk that has refused a prefix is tried again.
_PAUSE = 60.0
# Seconds to wait for a prefix as long as it is unknown how fast the model reads.
_PATIENCE = 5.0
# One of this number of prefixes that would be left out is loaded, because the disk may have become faster.
_RETRY_INTERVAL = 8
# Weight of the newest measurement in the moving average.
_WEIGHT = 0.3
# The share of a disk's free space that the files may have if the settings leave it to the engine.
_DISK_SHARE = 0.1
_NO_SLOTS = "prefixes are kept on disk for models that run in a batch on the CPU and read text"


@dataclass
class _SlotSnapshot:
    """What `PrefixStorer` knows of one KV cache slot: the tokens that the slot had when it was last checked, and how
    many of them were stored.
    """

    tokens: list[int]
    # Time of the clock at which the tokens that are not stored yet were first seen.
    since: float
    num_stored: int = 0


@dataclass(frozen=True)
class _Prefix:
    """A prefix that is to be stored: the first `length` tokens of a KV cache slot, with what is needed to check that
    the slot still has them when they have been copied.
    """

    slot: Slot
    # The very list of the slot. The slot gets another list before the memory of its tokens is overwritten. So a copy of
    # the memory is valid if the slot still has the same list afterwards.
    tokens: list[int]
    length: int
    root: str
    checkpoints: dict[int, Saved]
    num_clears: int


class PrefixStorer:
    """Stores prefixes from KV cache slots on disk, as part of a `DiskCache`. The thread of the engine's loop calls the
    methods; the executor `thread` writes the files.

    `folder` has the files, `memory` copies the KV cache from the slots in `slots`, and `clock` returns the time in
    seconds.
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
        """Start to store, in the other thread, the prefixes that have been in KV cache slots for long enough. Must be
        called about once a second.
        """
        now = self._clock()
        for snapshot, slot in zip(self._seen, self._slots.slots, strict=True):
            if slot.tokens is not snapshot.tokens:
                common = common_prefix_length(slot.tokens, snapshot.tokens)
                if 2 * common < len(slot.tokens):
                    snapshot.since = now
                snapshot.tokens, snapshot.num_stored = slot.tokens, min(snapshot.num_stored, common)
            length = max(slot.checkpoints, default=0) if self._memory.has_states else len(slot.tokens)
            num_unstored = length - snapshot.num_stored
            # Those of low priority would evict the others.
            is_worthwhile = not slot.low_priority and num_unstored * (now - snapshot.since) >= _MIN_WORTH
            if num_unstored >= self._memory.segment_tokens and is_worthwhile and now >= self._paused_until:
                snapshot.num_stored, snapshot.since = length, now
                root, checkpoints = root_key(slot.salt, is_long=slot.is_long), dict(slot.checkpoints)
                prefix = _Prefix(slot, slot.tokens, length, root, checkpoints, self._num_clears)
                self._thread.submit(self._run, prefix)

    def clear(self) -> bool:
        """Remove all stored prefixes of the model from the disk. Returns whether there were any. The files are deleted
        in the other thread.
        """
        self._num_clears += 1
        self._forget()
        removed = self._folder.set_aside()
        if removed is not None:
            self._thread.submit(shutil.rmtree, removed, ignore_errors=True)
        return removed is not None

    def _forget(self) -> None:
        now = self._clock()
        self._seen = [_SlotSnapshot(slot.tokens, now) for slot in self._slots.slots]

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
        segment. A segment is a part of a prefix that is stored in one file.

        Segments have the same length, except additional ones that end where a copy of the recurrent states (a
        checkpoint) was saved.
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


@dataclass
class _Load:
    """One load of a prefix from disk into the KV cache slot of a sequence. `PrefixLoader.fetch` creates it; it is over
    when the engine's loop takes what was loaded or cancels it.
    """

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
    """Loads the stored prefixes of sequences from disk into KV cache slots, as part of a `DiskCache`. The thread of the
    engine's loop calls the methods; the executor `thread` reads the files.

    `folder` has the files, `memory` copies the KV cache to the slots in `slots`, and `clock` returns the time in
    seconds.
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
        """Start to load the stored prefix of `sequence`, which has a KV cache slot. Returns whether the sequence must
        wait for a load; then `sequence.is_loading` is set.

        When the load has ended, successfully or not, `done` is called in another thread; then `take` must be called. If
        the prefix of another sequence that begins like this one is already being loaded, this sequence waits for that
        load, and `done` is not called. `seconds_per_token` is how long the model takes to read one prompt token; 0 if
        unknown.
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
                common_prefix_length(load.tokens, tokens) >= first + self._memory.segment_tokens
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
        """End the load for `sequence`, and record the loaded tokens in its KV cache slot. The sequence, and sequences
        that wait for the same load, stop waiting.

        Returns the number of loaded tokens; 0 if nothing was loaded.
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
        """Return the sequences whose prefix is still being loaded at the time `now`, although the deadline of the load
        has passed. `take` should be called for them, so that the model reads the rest.
        """
        return [load.sequence for load in self._loads.values() if now >= load.deadline]

    @property
    def next_deadline(self) -> float:
        """Time of the loader's clock at which the first of the loads in progress becomes late; infinite while nothing
        is loaded.
        """
        return min((load.deadline for load in self._loads.values()), default=inf)

    def cancel(self, sequence: Sequence) -> _Load | None:
        """Stop the load for `sequence`, so that nothing more is written to the sequence's KV cache slot. Returns the
        load, or None if there was none.

        The sequence, and other sequences that wait for the same load, stop waiting.
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
        """Load the longest stored prefix of a sequence's tokens into its slot, unless the model would read the tokens
        faster. Returns the number of bytes read from the disk; 0 if nothing was loaded.
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
            if self.num_left_out % _RETRY_INTERVAL:
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


class DiskCache:
    """The prefix cache on disk of one engine: it stores the KV cache of prompts' beginnings in files, and loads it for
    later prompts that begin in the same way, instead of computing it again. `open_disk_cache` creates it.

    The thread of the engine's loop calls the methods, among them those of `PrefixLoader` and `PrefixStorer` that are
    attributes here. The executor `loads` reads from the disk, and the executor `stores` writes to it.
    """

    def __init__(
        self,
        folder: SegmentFolder,
        memory: SlotMemory,
        slots: KvSlots,
        *,
        loads: Executor,
        stores: Executor,
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._memory = memory
        self._loader = PrefixLoader(folder, memory, slots, loads, clock)
        self._storer = PrefixStorer(folder, memory, slots, stores, clock)
        self.fetch = self._loader.fetch
        self.take = self._loader.take
        self.cancel = self._loader.cancel
        self.late = self._loader.late
        self.store = self._storer.store_due
        self.clear = self._storer.clear

    @property
    def next_deadline(self) -> float:
        """Time of the cache's clock at which the first of the waiting sequences stops waiting for its prefix to be
        loaded; infinite if no sequence waits.
        """
        return self._loader.next_deadline

    def figures(self, seconds_per_token: float) -> DiskCacheFigures:
        """Return the counters and settings of the cache for the metrics.

        `seconds_per_token` is how long the model takes to read one prompt token; 0 if unknown.
        """
        loader, storer = self._loader, self._storer
        return DiskCacheFigures(
            num_bytes=self._folder.num_bytes,
            max_bytes=self._folder.max_bytes,
            loads=loader.num_prefixes,
            loaded_tokens=loader.num_tokens,
            load_seconds=loader.seconds,
            left_out=loader.num_left_out,
            stored_tokens=storer.num_tokens,
            loaded_per_second=loader.bytes_per_second / self._memory.bytes_per_token,
            read_per_second=1 / seconds_per_token if seconds_per_token else 0.0,
            error=storer.error,
        )


def open_disk_cache(spec: EngineSpec, runner: Runner, clock: Clock = time.perf_counter) -> DiskCache | None:
    """Open the prefix cache on disk for `runner`, with the settings in `spec`. `clock` returns the time in seconds.

    Returns None if the runner's KV cache is not in CPU memory, if the model does not generate text, or if the folder
    cannot be used. The reason is logged, and the engine runs without the cache.
    """
    reads_text = task_of(Path(spec.model_dir)) is Task.GENERATE
    if not reads_text or not isinstance(runner, BatchedRunner) or not isinstance(runner.buffers, CpuBuffers):
        log.warning("GENAI_PREFIX_CACHE_BYTES has no effect: %s", _NO_SLOTS)
        return None
    arrays = runner.buffers.arrays
    cache_type = arrays[0].dtype
    stored_type = np.float16 if spec.prefix_cache_type == "fp16" and cache_type == np.float32 else cache_type
    memory = SlotMemory(arrays, runner.states if runner.slots.keeps_states else None, stored_type)
    depends_on = {
        "server": __version__,
        "stored": f"{cache_type} as {np.dtype(stored_type)}, {memory.segment_tokens} tokens",
        "threads": str(num_threads(spec.options, spec.threads)),
        "operators": library_key(),
        "attention": spec.attention_type,
    }
    try:
        root = Path(spec.prefix_cache_dir)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        tenth = int(_DISK_SHARE * shutil.disk_usage(root).free)
        max_bytes = tenth if spec.prefix_cache_bytes == "auto" else int(spec.prefix_cache_bytes)
        folder = SegmentFolder(root, model_key(Path(spec.model_dir), spec.options, depends_on), max_bytes)
    except OSError as error:
        log.warning("prefixes are not kept in %s: %s", spec.prefix_cache_dir, error)
        return None
    log.info("prefixes are kept in %s, up to %d bytes of all models", root, max_bytes)
    return DiskCache(
        folder,
        memory,
        runner.slots,
        loads=ThreadPoolExecutor(1, thread_name_prefix="prefix loader"),
        stores=ThreadPoolExecutor(1, thread_name_prefix="prefix storer", initializer=lower_cpu_priority),
        clock=clock,
    )
