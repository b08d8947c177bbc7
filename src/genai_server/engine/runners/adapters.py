"""LoRA adapters of one engine: `Adapters` loads each adapter once, and `AdapterStack` has the weights of all adapters
that the sequences of a batch use.

In the batch, one forward pass reads sequences with different adapters. Therefore the weights of all adapters are
concatenated, along the rank, into one matrix for each LoRA input of the model's graph (engine/graph_rewriting/lora.py).
An adapter has the same range of ranks in all of these matrices. When no sequence uses an adapter any more, its weights
stay in the matrices until another adapter needs their ranks. An adapter of rank 0 has no effect and takes no ranks.
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
    """The weights of one LoRA adapter, which `load_weights` has read from its file for use in a batch.

    `matrices` has the matrices by the names of the graph's inputs; inputs without a matrix count as zeros. `rank` is
    the largest rank of the matrices.
    """

    matrices: Mapping[str, NDArray[Any]]
    # The largest rank of the matrices.
    rank: int


def load_weights(path: Path, paths: Sequence[LowRankPath]) -> AdapterWeights:
    """Read the adapter file at `path`, and return its weights for a graph whose LoRA matrices have the inputs `paths`.

    `check_adapter_file` must have accepted the file before. Raises AdapterLoadFailed if the graph takes no adapters,
    the file cannot be read, weights are not finite, or the two matrices A and B of one LoRA path have different ranks.
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
    """The LoRA matrices A and B of all adapters in a batch, each concatenated along the rank, and which running
    sequence uses which adapter.

    The runner of the batch creates one if the model's graph has LoRA inputs. Before a sequence with an adapter runs,
    `hold` puts the adapter's weights into the matrices. `ranks` then says where they are, and `release` ends the use.
    `version` changes whenever the matrices are allocated anew, after which `bind` must be called again.
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
        """Return the range of ranks at which the matrices have the adapter of the sequence with the id `sequence`, as
        the first rank and the number of ranks.

        Returns None if the sequence has no adapter, or an adapter of rank 0.
        """
        weights = self._running.get(sequence)
        if weights is None or not weights.rank:
            return None
        entry = next(entry for entry in self._entries if entry.weights() is weights)
        return entry.first, entry.rank

    def hold(self, sequence: int, weights: AdapterWeights) -> None:
        """Copy an adapter's weights into the matrices, unless they are there already, and keep them there until
        `release` is called for the sequence with the id `sequence`, which uses the adapter.

        Raises RunnerFailed if there is no memory for the weights.
        """
        self._running[sequence] = weights
        try:
            if weights.rank and not any(entry.weights() is weights for entry in self._entries):
                self._add(weights)
        except MemoryError as error:
            raise RunnerFailed(f"no memory for an adapter: {error}") from error

    def release(self, sequence: int) -> None:
        """Record that the sequence with the id `sequence` has ended and no longer uses its adapter. Does nothing if it
        had no adapter.
        """
        self._running.pop(sequence, None)

    def bind(self, binding: Any) -> None:
        """Bind the matrices as inputs of a forward pass in `binding`, an IO binding of ONNX Runtime.

        The binding refers to the matrices' memory, so it must be bound again when `version` has changed.
        """
        for name, matrix in self._matrices.items():
            binding.bind_input(name, "cpu", 0, matrix.dtype.type, matrix.shape, matrix.ctypes.data)

    @property
    def num_bytes(self) -> int:
        """Size in bytes of the matrices A and B of all adapters, including ranks that no adapter uses."""
        return sum(matrix.nbytes for matrix in self._matrices.values())

    def _used(self) -> list[_RankRange]:
        running = {id(weights) for weights in self._running.values()}
        return [entry for entry in self._entries if id(entry.weights()) in running]

    def _add(self, weights: AdapterWeights) -> None:
        """Write an adapter's weights into the matrices, at consecutive ranks that no adapter in use has.

        If there are not enough of them, adapters that no sequence uses are removed. If that does not suffice, the
        remaining adapters are moved to the lowest ranks, so that the free ranks are consecutive, and the matrices grow
        if necessary.
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
        """Return the first of `rank` consecutive ranks of the matrices that no adapter in `entries` has; None if there
        are not so many free ranks in a row.
        """
        first = 0
        for entry in [entry for entry in entries if entry.weights() is not None]:
            if entry.first - first >= rank:
                return first
            first = entry.end
        return first if first + rank <= self._capacity else None

    def _pack(self, entries: list[_RankRange]) -> None:
        """Move the weights of the adapters in `entries` to the lowest ranks of the matrices, in the same order, and
        drop all other adapters. The ranges in `entries` are changed accordingly.
        """
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
        """Allocate new matrices for `capacity` ranks in place of the present ones, with undefined contents. The
        operating system provides memory only for ranks that are written later.
        """
        sizes = [(path.a, path.num_inputs) for path in self._paths] + [(p.b, p.num_outputs) for p in self._paths]
        self._matrices: dict[str, NDArray[np.float32]] = {
            name: np.empty((capacity, size), np.float32) for name, size in sizes
        }
        self._capacity = capacity
        self.version += 1


log = logging.getLogger(__name__)


class Adapters:
    """The LoRA adapters that an engine has loaded, by id, for the requests that name one. Only the thread of the
    engine's loop may use it.

    A sequence references its adapter until the sequence ends. So an adapter stays in memory after `unload` as long as
    sequences use it.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._loaded: dict[str, LoadedAdapter] = {}
        self._unloaded: set[str] = set()

    def load(self, adapter: Adapter) -> None:
        """Load an adapter from its file, so that requests can use it. Does nothing if it is loaded already.

        Raises AdapterLoadFailed if the file cannot be read, does not match the model, or changes meanwhile.
        """
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
        """Remove the adapter with this id, and make `find` refuse further requests for it. Running sequences keep the
        adapter.
        """
        self._loaded.pop(id, None)
        self._unloaded.add(id)

    def find(self, adapter: Adapter) -> LoadedAdapter:
        """Return the loaded adapter for a request that names `adapter`. Loads it if it has not been loaded since the
        engine's start.

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
    """Return the SHA-256 of the contents of the adapter file at `path`, in hexadecimal. Raises AdapterLoadFailed if the
    file cannot be read.
    """
    if not path.is_file():
        raise AdapterLoadFailed(f"{path} does not exist, or is not a file")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AdapterLoadFailed(f"{path} cannot be read: {error.strerror}") from None
