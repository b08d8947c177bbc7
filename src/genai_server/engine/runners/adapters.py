"""The LoRA adapters of one engine: loading each of them once, and their weights in the batch.

The weights of the adapters that the batch uses are concatenated into one matrix for each input of the graph
(engine/graph_rewriting/lora.py). An adapter has the same range of ranks in all of these matrices. The weights of an
adapter that no sequence uses stay there until their ranks are needed for another adapter. An adapter of rank 0 has no
effect, and no ranks.
"""

import hashlib
import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genai_server.engine.graph_description import LowRankPath
from genai_server.engine.kv_cache.layout import Ranks
from genai_server.engine.model.adapter_file import read_adapter_file
from genai_server.engine.runners.base import Runner
from genai_server.engine.sequence import LoadedAdapter
from genai_server.errors import AdapterLoadFailed, ModelNotFound, RunnerFailed, Unavailable, quoted
from genai_server.messages.generation_request import Adapter


@dataclass(frozen=True, eq=False)
class AdapterWeights:
    """Weights of an adapter in a batch: matrices by the names of the graph's inputs. Inputs without a matrix count as
    zeros.
    """

    matrices: Mapping[str, NDArray[Any]]
    # The largest rank of the matrices.
    rank: int


def load_weights(path: Path, paths: Sequence[LowRankPath]) -> AdapterWeights:
    """Return the weights in an adapter file, for a graph with the LoRA paths `paths`. The file was checked before.

    Raises AdapterLoadFailed if weights are not finite, or matrices of one path have different ranks.
    """
    if not paths:
        raise AdapterLoadFailed("the model takes no adapters")
    matrices = read_adapter_file(path)
    for name, matrix in matrices.items():
        if not np.isfinite(matrix).all():
            raise AdapterLoadFailed(f"{path} has values in {name} that are not finite")
    rank = 0
    for lora in paths:
        ranks = [matrices[name].shape[axis] if name in matrices else 0 for name, axis in ((lora.a, 1), (lora.b, 0))]
        if ranks[0] != ranks[1]:
            raise AdapterLoadFailed(
                f"{path} cannot be used with this model: {lora.a} has the rank {ranks[0]}, and {lora.b} {ranks[1]}"
            )
        rank = max(rank, ranks[0])
    return AdapterWeights(matrices, rank)


@dataclass
class _RankRange:
    weights: weakref.ref[AdapterWeights]
    first: int
    rank: int

    @property
    def end(self) -> int:
        return self.first + self.rank


class AdapterStack:
    """The matrices A and B of all adapters in use, concatenated along their ranks, and the adapter of each running
    sequence.
    """

    def __init__(self, paths: Sequence[LowRankPath]) -> None:
        self._paths = paths
        # In the order of their ranks.
        self._entries: list[_RankRange] = []
        self._running: dict[int, AdapterWeights] = {}
        # Changes when the matrices lie elsewhere, which what was bound before does not know.
        self.version = 0
        self._allocate(0)

    def ranks(self, sequence: int) -> Ranks | None:
        """Return the first rank and the number of ranks of the adapter that a sequence, given by its id, uses; None
        without an adapter, and for one of rank 0.
        """
        weights = self._running.get(sequence)
        if weights is None or not weights.rank:
            return None
        entry = next(entry for entry in self._entries if entry.weights() is weights)
        return entry.first, entry.rank

    def hold(self, sequence: int, weights: AdapterWeights) -> None:
        """Make sure that an adapter's weights are in the matrices until the sequence with the id `sequence` ends.

        Raises RunnerFailed if there is no memory for them.
        """
        self._running[sequence] = weights
        try:
            if weights.rank and not any(entry.weights() is weights for entry in self._entries):
                self._add(weights)
        except MemoryError as error:
            raise RunnerFailed(f"no memory for an adapter: {error}") from error

    def release(self, sequence: int) -> None:
        """Record that the sequence with this id has ended. It may have had no adapter."""
        self._running.pop(sequence, None)

    def bind(self, binding: Any) -> None:
        """Bind the matrices as inputs in an IO binding of ONNX Runtime, which is valid as long as `version` does not
        change.
        """
        for name, matrix in self._matrices.items():
            binding.bind_input(name, "cpu", 0, matrix.dtype.type, matrix.shape, matrix.ctypes.data)

    @property
    def num_bytes(self) -> int:
        """Size of the matrices in bytes, including ranks that are not in use."""
        return sum(matrix.nbytes for matrix in self._matrices.values())

    def _used(self) -> list[_RankRange]:
        running = {id(weights) for weights in self._running.values()}
        return [entry for entry in self._entries if id(entry.weights()) in running]

    def _add(self, weights: AdapterWeights) -> None:
        """Write an adapter's weights into the matrices, at ranks that no adapter in use has.

        If there are not enough consecutive ranks, adapters that no sequence uses are dropped. If that does not suffice,
        the others are moved together, and the matrices grow if necessary.
        """
        first = self._gap(weights.rank, self._entries)
        if first is None:
            self._entries = self._used()
            first = self._gap(weights.rank, self._entries)
        if first is None:
            self._pack(self._entries)
            first = self._entries[-1].end if self._entries else 0
            if first + weights.rank > self._capacity:
                self._grow(max(2 * self._capacity, first + weights.rank))
        self._entries.append(_RankRange(weakref.ref(weights), first, weights.rank))
        self._entries.sort(key=lambda entry: entry.first)
        for path in self._paths:
            self._write(path.a, first, weights, transposed=True)
            self._write(path.b, first, weights, transposed=False)

    def _write(self, name: str, first: int, weights: AdapterWeights, *, transposed: bool) -> None:
        part = self._matrices[name][first : first + weights.rank]
        stored = weights.matrices.get(name)
        rows = 0
        if stored is not None:
            matrix = stored.T if transposed else stored
            rows = len(matrix)
            part[:rows] = matrix
        part[rows:] = 0

    def _gap(self, rank: int, entries: list[_RankRange]) -> int | None:
        """Return the first of `rank` consecutive ranks that are not in `entries`; None if there are no such ranks."""
        first = 0
        for entry in [entry for entry in entries if entry.weights() is not None]:
            if entry.first - first >= rank:
                return first
            first = entry.end
        return first if first + rank <= self._capacity else None

    def _pack(self, entries: list[_RankRange]) -> None:
        """Move the weights of the adapters in `entries` to the lowest ranks, and drop all other adapters."""
        first = 0
        for entry in entries:
            for matrix in self._matrices.values():
                matrix[first : first + entry.rank] = matrix[entry.first : entry.end]
            entry.first, first = first, first + entry.rank
        self._entries = entries

    def _grow(self, capacity: int) -> None:
        before, end = self._matrices, self._entries[-1].end if self._entries else 0
        self._allocate(capacity)
        for name, matrix in self._matrices.items():
            matrix[:end] = before[name][:end]

    def _allocate(self, capacity: int) -> None:
        """Allocate matrices with `capacity` ranks. Memory is only used for ranks that are written."""
        sizes = [(path.a, path.num_inputs) for path in self._paths] + [(p.b, p.num_outputs) for p in self._paths]
        self._matrices: dict[str, NDArray[np.float32]] = {
            name: np.empty((capacity, size), np.float32) for name, size in sizes
        }
        self._capacity = capacity
        self.version += 1


log = logging.getLogger(__name__)


class Adapters:
    """The loaded adapters of an engine, by id. Used by the thread of the engine's loop only.

    A sequence references its adapter until the sequence ends, so an adapter stays in memory after `unload` as long as
    sequences use it.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._loaded: dict[str, LoadedAdapter] = {}
        self._unloaded: set[str] = set()

    def load(self, adapter: Adapter) -> None:
        """Load an adapter, so that requests can use it. Does nothing if it is loaded. Raises AdapterLoadFailed."""
        if adapter.id in self._loaded:
            return
        try:
            self._loaded[adapter.id] = self._load(Path(adapter.path))
        except AdapterLoadFailed as error:
            raise AdapterLoadFailed(f"adapter {quoted(adapter.name)}: {error.message}", param="path") from None
        where = "in the batch" if self._runner.abilities.mixes else "one by one"
        log.info("adapter %s is loaded; its requests run %s", quoted(adapter.name), where)

    def _load(self, path: Path) -> LoadedAdapter:
        digest = _digest(path)
        loaded = self._runner.load_adapter(path)
        if _digest(path) != digest:  # keys and values of one content would be cached as those of another
            raise AdapterLoadFailed(f"{path} was written into while it was loaded")
        return LoadedAdapter(digest, loaded)

    def unload(self, id: str) -> None:
        """Refuse further requests that use the adapter with this id."""
        self._loaded.pop(id, None)
        self._unloaded.add(id)

    def find(self, adapter: Adapter) -> LoadedAdapter:
        """Return the loaded adapter for a request. It is loaded now if that was not done since the engine's start.

        Raises ModelNotFound if the adapter was unloaded while the request was on its way, and Unavailable if it cannot
        be loaded, for instance because its file no longer exists.
        """
        if adapter.id in self._unloaded:
            raise ModelNotFound(f"adapter {quoted(adapter.name)} was unloaded", param="model")
        try:
            self.load(adapter)
        except AdapterLoadFailed as error:
            log.error("%s", error.message)  # clients must not learn file names
            raise Unavailable(
                f"adapter {quoted(adapter.name)} cannot be loaded; see the server log", param="model"
            ) from None
        return self._loaded[adapter.id]


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file's contents in hexadecimal. Raises AdapterLoadFailed if the file cannot be read."""
    if not path.is_file():
        raise AdapterLoadFailed(f"{path} does not exist, or is not a file")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AdapterLoadFailed(f"{path} cannot be read: {error.strerror}") from None
