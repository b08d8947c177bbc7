"""Decides how large the KV cache of each engine in the host's memory is (`MemoryBudget.divide`), and whether there is
enough memory to load a model (`MemoryBudget.decide`).

Half of the memory that the weights of all models leave is for KV caches. The other half remains for activations, cached
files, prompts and the API processes. All sizes are in bytes.

An engine on a GPU measures the memory that is left for its KV cache (engine/runners/gpu_kv_cache_size.py). From the
size, each engine derives how many sequences run at once and how long they may be (engine/runners/sequence_limits.py).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Protocol

from genai_server.config.settings import Settings
from genai_server.messages.server_status import EngineStatus, ModelState, ModelStatus
from genai_server.model_files.model_memory import RUNTIME, ModelMemory, read_model_memory
from genai_server.options.providers import CPU
from genai_server.system.resources import free_memory

# Idle models are unloaded for one whose sequences could not have WANTED_TOKENS otherwise. A model that does not fit
# with sequences of REQUIRED_TOKENS is not loaded.
WANTED_TOKENS, REQUIRED_TOKENS = 8192, 2048
# Share of the memory left by weights that keys and values may take.
_KV_SHARE = 0.5
_MIB = 1024 * 1024


class MemoryEngine(Protocol):
    """What the MemoryBudget needs to know of an engine: its status, the size of its KV cache, and a way to change that
    size. EngineWatch implements it.
    """

    status: EngineStatus
    # The least and the most memory for its keys and values, as it has reported; None until it has loaded.
    kv_range: tuple[int, int] | None

    @property
    def kv_bytes(self) -> int:
        """The current size of the engine's KV cache in bytes."""
        ...

    def resize(self, num_bytes: int) -> None:
        """Change the maximum size of the engine's KV cache to `num_bytes` bytes. With 0, the engine chooses a size when
        it loads.
        """
        ...


class MemoryModel(Protocol):
    """What the MemoryBudget needs to know of a model, whether loaded or not: its status, its state and its engines.
    ManagedModel implements it.
    """

    about: ModelStatus

    @property
    def engines(self) -> Sequence[MemoryEngine]:
        """The model's engines; empty unless it is loaded."""
        ...

    @property
    def state(self) -> ModelState:
        """The current state of the model, such as loading, ready or unloaded."""
        ...


class Decision(Enum):
    """The result of `MemoryBudget.decide` for a model that requests wait for: load it, or first unload an idle
    model.
    """

    LOAD = "load"
    # Unload the model that has been idle the longest.
    EVICT = "evict"


@dataclass(frozen=True)
class Shortage:
    """The result of `MemoryBudget.decide` if there is too little memory to load a model: the reason, as a sentence for
    operators, and whether the model would not fit even if no other model were loaded.
    """

    # Names the bytes that are needed and those that are free.
    reason: str
    # Whether it would not fit without any other model, either.
    is_too_large: bool


class MemoryBudget:
    """Compares the memory that models need with the free memory, decides whether a model can be loaded, and divides the
    memory for KV caches among engines. The supervisor has one; the caller of a method holds the supervisor's lock.

    `free` returns the free memory in bytes, counting as used the files that running engines have mapped. `read`
    estimates a model's memory from its directory.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        free: Callable[[], int] = lambda: free_memory(keeps_mapped=True),
        read: Callable[[Path], ModelMemory] = read_model_memory,
    ) -> None:
        self._settings = settings
        self._free = free
        # By directory and serial: another model may have come into the directory.
        self._read_once = cache(lambda path, serial: read(path))
        self._divided: object = None

    def decide(
        self, model: MemoryModel, loaded: Collection[MemoryModel], idle: Collection[MemoryModel] = ()
    ) -> Decision | Shortage:
        """Decide whether the unloaded model `model` can be loaded next to the `loaded` models, of which the `idle` ones
        may be unloaded to make space.

        The result is LOAD if there is memory for sequences of WANTED_TOKENS. If there is memory only for sequences of
        REQUIRED_TOKENS, the result is EVICT (unload an idle model first) if that makes space for WANTED_TOKENS,
        otherwise LOAD. If there is not even that much, the result is EVICT if that makes space for REQUIRED_TOKENS,
        otherwise a Shortage with the reason.
        """
        if self.fits_well(model, loaded):
            return Decision.LOAD
        # Some weights of loading models may lie in memory already, so at most this would be free without any.
        if not self._can_run(model.about, self._movable(loaded) + sum(self.weights(other.about) for other in loaded)):
            return Shortage(self._figures(model.about, loaded), is_too_large=True)
        used = [other for other in loaded if other not in idle]
        fits = self._fits(model, loaded, (), REQUIRED_TOKENS)
        if idle and self._fits(model, used, idle, REQUIRED_TOKENS if not fits else WANTED_TOKENS):
            return Decision.EVICT
        if fits:
            return Decision.LOAD
        return Shortage(self._figures(model.about, loaded), is_too_large=False)

    def fits_well(self, model: MemoryModel, loaded: Collection[MemoryModel]) -> bool:
        """Return whether the unloaded model `model` fits next to the `loaded` models with memory for sequences of
        WANTED_TOKENS.
        """
        return self._fits(model, loaded, (), WANTED_TOKENS)

    def divide(self, loaded: Collection[MemoryModel]) -> None:
        """Divide the memory for KV caches among the engines of the `loaded` models, by calling `resize` of each engine.
        Does nothing if no engine was added, loaded or removed since the last call, or if the settings give a size.
        """
        engines = [(model.about, engine) for model in loaded for engine in model.engines]
        inputs = [(status.serial, engine.status.device, engine.kv_range) for status, engine in engines]
        if inputs == self._divided or self._settings.kv_cache_bytes:
            return
        self._divided = inputs
        total = int(_KV_SHARE * max(0, self._available(loaded)))
        ranges = [engine.kv_range or self._expected_range(status, engine, total) for status, engine in engines]
        for (_, engine), share in zip(engines, divided(total, ranges), strict=True):
            engine.resize(share)

    def weights(self, status: ModelStatus) -> int:
        """Return the bytes of memory that all engines of a model together need besides their KV caches."""
        return len(status.devices) * RUNTIME + self._num_host_engines(status) * self._memory(status).weights

    def weights_of_engine(self, status: ModelStatus) -> int:
        """Return the bytes of memory that an engine of a model on a CPU needs besides its KV cache."""
        return RUNTIME + self._memory(status).weights

    def _figures(self, status: ModelStatus, loaded: Collection[MemoryModel]) -> str:
        """Return a sentence for operators about too little memory: the memory that a model needs, and what is free next
        to the `loaded` models.
        """
        weights, engines = self.weights(status), self._num_host_engines(status)
        needed = engines * self._kv_needed(status, REQUIRED_TOKENS)
        next_to = ""
        if loaded:
            reserved = sum(map(self._reserved, loaded))
            names = ", ".join(model.about.name for model in loaded)
            next_to = f" next to {names}, which keep {_mib(reserved)} of it"
        return (
            f"model {status.name} needs about {_mib(weights)} for its weights, and {_mib(needed)} for keys and values "
            f"of a short sequence; {_mib(self._available(loaded))} are free{next_to} "
            "(GENAI_MAX_MODELS=0 loads it in any case)"
        )

    def _expected_range(self, status: ModelStatus, engine: MemoryEngine, total: int) -> tuple[int, int]:
        """Return the expected minimum and maximum KV cache size, in bytes, of an engine that has not loaded yet. Both
        are 0 if the engine uses a device's own memory. `status` describes the engine's model, and `total` is the memory
        for all KV caches in bytes.
        """
        if not _is_on_host(engine.status.device) or not self._memory(status).per_token:
            return 0, 0
        return self._kv_needed(status, REQUIRED_TOKENS), total

    def _fits(
        self, model: MemoryModel, staying: Collection[MemoryModel], ended: Collection[MemoryModel], num_tokens: int
    ) -> bool:
        """Return whether a model fits, with memory for sequences of `num_tokens` tokens, next to the `staying` models
        when the `ended` models are unloaded.
        """
        status = model.about
        available = self._available([*staying, *ended]) + sum(self.weights(other.about) for other in ended)
        if not staying and num_tokens == REQUIRED_TOKENS:
            return self._can_run(status, available)
        available -= self.weights(status)
        needed = self._num_host_engines(status) * self._kv_needed(status, num_tokens)
        return available >= 0 and sum(map(self._reserved, staying)) + needed <= _KV_SHARE * available

    def _can_run(self, status: ModelStatus, num_bytes: int) -> bool:
        """Return whether `num_bytes` bytes are enough to run a model with short sequences (REQUIRED_TOKENS), if no
        other model used any of them.
        """
        needed = self._num_host_engines(status) * self._kv_needed(status, REQUIRED_TOKENS)
        return self.weights(status) + needed <= num_bytes

    def _available(self, loaded: Collection[MemoryModel]) -> int:
        """Return the bytes that can be used for KV caches or further models: the free memory plus the current KV caches
        of the `loaded` models, minus the weights that models are still loading.
        """
        return self._movable(loaded) - sum(
            self.weights(model.about) for model in loaded if model.state == ModelState.LOADING
        )

    def _movable(self, loaded: Collection[MemoryModel]) -> int:
        """Return the bytes of the host's memory that are free, plus those of the current KV caches of the `loaded`
        models.
        """
        return self._free() + sum(engine.kv_bytes for model in loaded for engine in _host_engines(model))

    def _reserved(self, model: MemoryModel) -> int:
        """Return the bytes that the KV caches of a loaded model need at least, summed over its engines in the host's
        memory.
        """
        status = model.about
        return sum(
            engine.kv_range[0] if engine.kv_range else self._kv_needed(status, WANTED_TOKENS)
            for engine in _host_engines(model)
        )

    def _kv_needed(self, status: ModelStatus, num_tokens: int) -> int:
        """Return the minimum KV cache size, in bytes, of one engine of a model.

        That is the size in the settings if they have one, otherwise the size for a sequence of the configured maximum
        length or, without a configured length, for a sequence of `num_tokens` tokens.
        """
        settings = self._settings
        if settings.kv_cache_bytes:
            return settings.kv_cache_bytes
        length = num_tokens if isinstance(settings.max_length, str) else settings.max_length
        return self._memory(status).kv_cache_size(length, settings.kv_cache_type)

    def _memory(self, status: ModelStatus) -> ModelMemory:
        """Return the estimated memory of a model together with its draft model (speculative decoding), if it
        has one.
        """
        memory: ModelMemory = self._read_once(Path(status.path), status.serial)
        return memory.with_draft_model(self._read_once(Path(status.draft_model), 0)) if status.draft_model else memory

    @staticmethod
    def _num_host_engines(status: ModelStatus) -> int:
        """Return how many of a model's engines use the host's memory instead of a device's own."""
        return sum(map(_is_on_host, status.devices))


def divided(total: int, ranges: Sequence[tuple[int, int]]) -> list[int]:
    """Divide `total` bytes into one share for each range (minimum, maximum), and return the shares in the order of
    `ranges`. The shares are as equal as the ranges allow.

    Each share is at least its minimum, even if the sum of the shares then exceeds the total.
    """
    low, high = 0, max(total, *(minimum for minimum, _ in ranges), 0) if ranges else 0
    while low < high:  # the highest level that the total can pay for
        level = (low + high + 1) // 2
        if sum(_within(level, size_range) for size_range in ranges) <= total:
            low = level
        else:
            high = level - 1
    return [_within(low, size_range) for size_range in ranges]


def _within(level: int, size_range: tuple[int, int]) -> int:
    minimum, maximum = size_range
    return max(minimum, min(level, maximum))


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:.0f} MiB"


def _host_engines(model: MemoryModel) -> list[MemoryEngine]:
    return [engine for engine in model.engines if _is_on_host(engine.status.device)]


def _is_on_host(device: str) -> bool:
    """Return whether an engine for this device uses the host's memory. True for CPUs and for scripted devices, which
    run no model.
    """
    return device.partition(":")[0] in (CPU, "scripted")
