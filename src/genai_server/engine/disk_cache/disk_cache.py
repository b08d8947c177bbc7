"""The prefix cache on disk of one engine, which combines the writer and the reader of stored prefixes with their
folder.
"""

import logging
import shutil
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from genai_server import __version__
from genai_server.engine.disk_cache.prefix_loader import PrefixLoader
from genai_server.engine.disk_cache.prefix_storer import PrefixStorer
from genai_server.engine.disk_cache.segment_file import SlotMemory
from genai_server.engine.disk_cache.segment_folder import SegmentFolder
from genai_server.engine.host.resources import let_others_go_first
from genai_server.engine.kv_cache.buffers import CpuBuffers
from genai_server.engine.kv_cache.kv_slots import KvSlots
from genai_server.engine.model.native_library import library_key
from genai_server.engine.model.session_options import num_threads
from genai_server.engine.model.weights import model_key
from genai_server.engine.runners.base import Runner
from genai_server.engine.runners.batched import BatchedRunner
from genai_server.messages.engine_protocol import DiskCacheFigures
from genai_server.messages.launch import EngineSpec
from genai_server.model_files.pooling_model import Task, task_of
from genai_server.timing import Clock

log = logging.getLogger(__name__)
# The share of a disk's free space that the files may have if the settings leave it to the engine.
_DISK_SHARE = 0.1
_NO_SLOTS = "prefixes are kept on disk for models that run in a batch on the CPU and read text"


class DiskCache:
    """Prefix cache on disk of one engine: stores the KV cache of prompts in files, and loads it again instead of
    computing it.

    Its methods are called by the thread of the engine's loop. One thread reads from the disk, and another one writes.
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
        """Earliest time, by the cache's clock, at which a sequence stops waiting for its prefix to be loaded.

        Infinite if no sequence waits.
        """
        return self._loader.next_deadline

    def figures(self, seconds_per_token: float) -> DiskCacheFigures:
        """Counters and settings of the cache for the metrics.

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
    """Open the prefix cache on disk, as the settings in `spec` ask for it. `clock` returns the time in seconds.

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
        stores=ThreadPoolExecutor(1, thread_name_prefix="prefix storer", initializer=let_others_go_first),
        clock=clock,
    )
