"""Everything that an engine has loaded for its model, and which runner runs which sequence.

Most sequences run on the main runner, which is a batch if the model allows that. Sequences with an adapter that the
batch cannot apply run on a second runner, each on an `og.Generator` of onnxruntime-genai.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from genai_server.engine.encoder_worker import EncoderWorker
from genai_server.engine.kv_cache.kv_events import CachedBlocks, KvEventPublisher
from genai_server.engine.runners.adapters import Adapters
from genai_server.engine.runners.base import Runner, run_pass
from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import Batching, GenerationRequest

if TYPE_CHECKING:
    from genai_server.engine.disk_cache.disk_cache import DiskCache
    from genai_server.engine.runners.draft_model import DraftModel


@dataclass(eq=False)
class LoadedModel:
    """A loaded model: its runners, and what works with them, such as encoder, draft model and disk cache.

    The attribute `main` is the runner of most sequences: the batch if there is one, otherwise `generator`.
    """

    # The runner of those sequences that the batch cannot run, which are all if there is no batch. It is the batch
    # itself if that can run all sequences.
    generator: Runner
    batch: Runner | None = None
    # Why there is no batch; None if there is one.
    reason: str | None = None
    # Encodes images or audio; None if the model reads text only.
    encoder: EncoderWorker[Any] | None = None
    # Drafts for sequences of the batch; None without one.
    draft_model: "DraftModel | None" = None
    # Publishes what each step changes in the prefix cache; None if the settings do not ask for it.
    kv_events: KvEventPublisher | None = None
    # The prefix cache as API processes receive it; None if they do not choose between engines.
    cached_blocks: CachedBlocks | None = None
    # The prefix cache on disk; None if the settings do not ask for it, or it cannot be used.
    disk_cache: "DiskCache | None" = None
    # Why no sequence can be profiled; empty if sequences can.
    why_no_profile: str = ""

    def __post_init__(self) -> None:
        self.main = self.batch or self.generator
        if self.main.abilities.pools:
            self.why_no_profile = "a model for embeddings or reranking cannot be profiled"
        # A runner that takes none says why.
        self.adapters = Adapters(self.main if self.main.abilities.adapters else self.generator)

    @property
    def batching(self) -> Batching:
        """Description of how requests run, which API processes receive."""
        can, nodes = self.main.abilities, dict(self.main.nodes)
        if self.batch is None:
            is_exact = not can.pools and not can.why_not_exact
            return Batching(can.name, self.reason, nodes=nodes, exact=is_exact)
        draft_model = None if self.draft_model is None else self.draft_model.name
        return Batching(can.name, None, can.max_rows, nodes, can.mixes, not can.why_not_exact, draft_model=draft_model)

    @property
    def kv_capacity(self) -> int:
        """Number of tokens that the KV cache can hold for all sequences together; 0 if each slot has memory for the
        longest sequence, so that nothing is shared.
        """
        can = self.main.abilities
        return 0 if self.batch is None else can.memory.num_tokens(can.max_rows)

    @property
    def kv_bytes(self) -> int:
        """Bytes of memory that KV cache slots use at present. A KV cache without slots is not counted."""
        return sum(runner.slots.num_bytes for runner, _ in self._shares() if runner.slots is not None)

    @property
    def kv_range(self) -> tuple[int, int]:
        """The smallest possible and the largest useful number of bytes for `resize`."""
        shares = [(runner.abilities.memory, share) for runner, share in self._shares()]
        min_bytes = max(math.ceil(memory.min_bytes / share) for memory, share in shares)
        return min_bytes, max(math.ceil(memory.max_bytes / share) for memory, share in shares)

    def resize(self, num_bytes: int) -> None:
        """Set the memory for KV caches to `num_bytes` bytes. The caller must then call `fit_memory`."""
        for runner, share in self._shares():
            runner.abilities.memory.resize(int(share * num_bytes))

    def fit_memory(self) -> None:
        """Free KV cache memory beyond the limit that `resize` has set."""
        if self.draft_model is not None:
            self.draft_model.fit()
        for runner, _ in self._shares():
            if runner.slots is not None:
                runner.slots.fit()

    def forget(self) -> int:
        """Drop all cached prefixes, including those on disk. Returns how many KV cache slots had one."""
        if self.disk_cache is not None:
            self.disk_cache.clear()
        if self.draft_model is not None:
            self.draft_model.runner.forget()
        return self.main.forget()

    def _shares(self) -> list[tuple[Runner, float]]:
        """The runners that have a KV cache, each with its part, from 0 to 1, of the memory for KV caches."""
        if self.draft_model is None:
            return [(self.main, 1.0)]
        share = self.draft_model.kv_share
        return [(self.main, 1.0 - share), (self.draft_model.runner, share)]


class RunnerPair:
    """Assigns each sequence to one of a model's two runners, `main` or `generator`, which may be the same."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.main = loaded.main
        self.generator = loaded.generator

    def of(self, sequence: Sequence) -> Runner:
        """Return the runner on which an opened sequence runs."""
        return self.main if sequence.batched else self.generator

    def for_request(self, request: GenerationRequest) -> Runner:
        """Return the runner on which the sequences of a request will run."""
        return self.main if request.adapter is None or self.main.abilities.adapters else self.generator

    def reuses_past(self, request: GenerationRequest) -> bool:
        """Whether a request may reuse a cached prefix."""
        caches = self.for_request(request).abilities.caches_prefixes
        return caches and request.cache_prompt and not request.prompt_logprobs

    def open(self, sequence: Sequence) -> None:
        """Prepare a sequence to run on its runner. Raises RunnerFailed."""
        sequence.batched = self.for_request(sequence.request) is self.loaded.batch
        sequence.profile.active = None
        sequence.num_read = self.of(sequence).open(sequence)
        if not sequence.num_produced and not sequence.num_preemptions:
            sequence.num_cached = sequence.num_read

    def forward(self, step: Step) -> list[Scores]:
        """Run the pass of a step, all of whose sequences must be on the same runner. Errors of the runner are raised
        unchanged.
        """
        return run_pass(self.of(step.chunks[0].sequence), step.chunks)

    def outgrown(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Return those decoding sequences that have become so long that they need the long factors of the model's rope,
        and must be read again with these.
        """
        if self.main.switches_at is None:
            return []
        return [s for s in sequences if s.batched and s.is_decoding and self.main.must_reopen(s)]

    def reopen(self, sequence: Sequence) -> None:
        """Close a sequence and open it again. All its tokens are then read again, except those in a cached prefix.

        Raises RunnerFailed.
        """
        self.close(sequence)
        self.open(sequence)

    def close(self, sequence: Sequence) -> None:
        """End a sequence on its runner and free its memory. A load of its prefix from disk is cancelled."""
        if self.loaded.disk_cache is not None:
            self.loaded.disk_cache.cancel(sequence)
        if self.loaded.draft_model is not None:
            self.loaded.draft_model.close(sequence.id)
        self.of(sequence).close(sequence.id)
