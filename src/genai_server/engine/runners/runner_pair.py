"""Which runner a sequence is on, and how it moves to the other one.

Most sequences run on the main runner, which is a batch where the model allows one. onnxruntime-genai's Generator has
runtime options and the adapters of all graphs, and is the main runner where there is no batch. A sequence can move
between them in the middle of its answer. A Generator cannot take over keys and values, so it reads the sequence's
tokens again. On the way back, its keys and values are copied into a KV cache slot.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from genai_server.engine.encoder_worker import EncoderWorker
from genai_server.engine.kv_cache.kv_events import KvEventPublisher
from genai_server.engine.runners.adapters import Adapters
from genai_server.engine.runners.base import Runner, run_pass
from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import Batching, GenerationRequest

if TYPE_CHECKING:
    from genai_server.engine.disk_cache.disk_cache import DiskCache
    from genai_server.engine.runners.draft_model import DraftModel

NOT_EXACT = (
    "an exact request cannot be profiled with this model: profiled requests run alone, "
    "and a row alone is not bitwise equal to a row in a batch"
)
NO_ADAPTERS = (
    "a request with an adapter cannot be profiled with this model: profiled requests run on onnxruntime-genai's "
    "Generator, which has no adapters for models that take images"
)


class RunnerPair:
    """Places each sequence on one of two runners. Without a batch, both are the generator's."""

    def __init__(
        self,
        generator: Runner,
        batch: Runner | None = None,
        *,
        reason: str | None = None,
        encoder: EncoderWorker[Any] | None = None,
    ) -> None:
        self.generator = generator
        self.encoder = encoder  # of images or sounds; None if the model reads text only
        self.main = batch or generator
        self.has_batch = batch is not None
        # Sequences with an adapter stay on the generator's runner if the batch takes none.
        takers = [one for one in (batch, generator) if one is not None and one.abilities.adapters]
        self.adapters = Adapters(takers or [generator])  # which says why it takes none
        self._reason = reason  # why there is no batch
        # Why no sequence can be profiled; empty if sequences can.
        self.why_no_profile = ""
        if self.main.abilities.pools:
            self.why_no_profile = "a model for embeddings or reranking cannot be profiled"
        # Publishes what each step changes in the prefix cache; None if that is not wanted.
        self.kv_events: KvEventPublisher | None = None
        # Keeps prefixes on disk; None if that is not wanted or not possible.
        self.disk_cache: DiskCache | None = None
        # Drafts for sequences of the batch; None without one.
        self.draft_model: DraftModel | None = None

    @property
    def batching(self) -> Batching:
        """How requests are batched, for the API processes."""
        can, nodes = self.main.abilities, dict(self.main.nodes)
        if not self.has_batch:
            return Batching(can.name, self._reason, nodes=nodes)
        draft_model = None if self.draft_model is None else self.draft_model.name
        return Batching(
            can.name, None, can.max_rows, can.exact, nodes, can.mixes, can.int8_from, draft_model=draft_model
        )

    @property
    def kv_capacity(self) -> int:
        """Tokens that the KV cache holds for all sequences; 0 if each slot has memory for the longest sequence."""
        can = self.main.abilities
        return can.memory.num_tokens(can.max_rows) if self.has_batch else 0

    def of(self, sequence: Sequence) -> Runner:
        """The runner that a running sequence is on."""
        return self.main if sequence.batched else self.generator

    def for_request(self, request: GenerationRequest) -> Runner:
        """The runner of a request while it is not profiled."""
        return self._main_runner(has_adapter=request.adapter is not None)

    def _main_runner(self, *, has_adapter: bool) -> Runner:
        return self.main if self.main.abilities.adapters or not has_adapter else self.generator

    def _is_for_main(self, sequence: Sequence) -> bool:
        return self._main_runner(has_adapter=sequence.adapter is not None) is self.main

    def reuses_past(self, request: GenerationRequest) -> bool:
        """Whether a request may reuse a cached prefix."""
        caches = self.for_request(request).abilities.caches_prefixes
        return caches and request.cache_prompt and not request.prompt_logprobs

    def no_profile(self, *sequences: Sequence) -> str | None:
        """Why these sequences cannot move to the generator's runner, where each runs alone; None if they can."""
        if self.why_no_profile:
            return self.why_no_profile
        if self.generator.abilities.name == self.main.abilities.name:
            return None  # they have the same passes there
        if not self.generator.abilities.adapters and any(sequence.adapter is not None for sequence in sequences):
            return NO_ADAPTERS
        moving = [sequence for sequence in sequences if self._is_for_main(sequence)]
        if not self.main.abilities.exact and any(sequence.request.exact for sequence in moving):
            return NOT_EXACT
        return None

    def open(self, sequence: Sequence) -> None:
        """Begin a sequence. Raises RunnerFailed."""
        is_batched = self.has_batch and self._is_for_main(sequence) and not sequence.profile.is_on
        self._open_on(sequence, batched=is_batched)

    def forward(self, step: Step) -> list[Scores]:
        """Run a step, whose sequences are all on one runner. Raises what the runner raises."""
        return run_pass(self.of(step.reads[0].sequence), step.reads)

    def to_generator(self, sequence: Sequence) -> None:
        """Move a sequence to the generator, where runtime options work. Its tokens are read again, in chunks."""
        if sequence.batched:
            self.close(sequence)
            self._open_on(sequence, batched=False)

    def to_batch(self, sequence: Sequence) -> None:
        """Move a sequence to the batch, with the generator's keys and values if it has kept them all."""
        if sequence.batched or not self.has_batch or not self._is_for_main(sequence):
            return
        if self.main.abilities.chooses and sequence.num_produced:
            return  # its sampling would not continue the same way, and a grammar would start again
        if not self.main.abilities.adopts:
            self.reopen(sequence)
            return
        past = self.generator.export(sequence.id, self.main.present_names) if sequence.num_read else {}
        self.close(sequence)
        self.main.adopt(sequence, past)
        sequence.batched = True

    def outgrown(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """The sequences of the batch that have become too long for what its runner keeps of them."""
        if not self.main.abilities.reopens:
            return []
        return [s for s in sequences if s.batched and s.is_decoding and self.main.must_reopen(s)]

    def reopen(self, sequence: Sequence) -> None:
        """Begin a sequence of the batch again. Its tokens are read again, in chunks."""
        self.close(sequence)
        self._open_on(sequence, batched=True)

    def close(self, sequence: Sequence) -> None:
        """End a sequence and free what it holds."""
        if self.disk_cache is not None:
            self.disk_cache.cancel(sequence)
        if self.draft_model is not None:
            self.draft_model.close(sequence.id)
        self.of(sequence).close(sequence.id)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values in memory, as far as they are counted."""
        return sum(runner.slots.num_bytes for runner, _ in self._shares() if runner.slots is not None)

    @property
    def kv_range(self) -> tuple[int, int]:
        """The least and the most bytes for keys and values that `resize` takes into account."""
        shares = [(runner.abilities.memory, share) for runner, share in self._shares()]
        least = max(math.ceil(memory.min_bytes / share) for memory, share in shares)
        return least, max(math.ceil(memory.max_bytes / share) for memory, share in shares)

    def resize(self, num_bytes: int) -> None:
        """Change the size of the memory for keys and values. `fit_memory` then frees what is beyond it."""
        for runner, share in self._shares():
            runner.abilities.memory.resize(int(share * num_bytes))

    def fit_memory(self) -> None:
        """Free what is beyond the size of the memory for keys and values, after that has changed."""
        if self.draft_model is not None:
            self.draft_model.fit()
        for runner, _ in self._shares():
            if runner.slots is not None:
                runner.slots.fit()

    def forget(self) -> int:
        """Drop all cached prefixes, also those on disk; returns how many slots had one."""
        if self.disk_cache is not None:
            self.disk_cache.clear()
        if self.draft_model is not None:
            self.draft_model.runner.forget()
        return self.main.forget()

    def _shares(self) -> list[tuple[Runner, float]]:
        """The runners that have memory for keys and values, each with its share of it."""
        if self.draft_model is None:
            return [(self.main, 1.0)]
        share = self.draft_model.kv_share
        return [(self.main, 1.0 - share), (self.draft_model.runner, share)]

    def interrupt(self) -> None:
        """End the pass in progress, if its runner can. Any thread may call this."""
        self.main.interrupt()

    def end_sessions(self) -> None:
        """End the model's sessions. No other call follows."""
        for runner in {self.generator, self.main}:
            runner.end_session()

    def _open_on(self, sequence: Sequence, *, batched: bool) -> None:
        sequence.batched = batched
        sequence.by_library = batched and self.main.abilities.chooses
        sequence.num_read = self.of(sequence).open(sequence)
        if not sequence.num_produced and not sequence.num_pauses:
            sequence.num_cached = 0 if sequence.by_library else sequence.num_read
