"""Which runner a sequence is on, and how it moves to the other one.

Most sequences run on the main runner, which is a batch where the model allows one. onnxruntime-genai's Generator has
runtime options and the adapters of all graphs, and is the main runner where there is no batch. A sequence can move
between them in the middle of its answer. A Generator cannot take over keys and values, so it reads the sequence's
tokens again. On the way back, its keys and values are copied into a KV cache slot.
"""

from collections.abc import Iterable

from genai_server.engine.runners.base import Runner, run_pass
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import GenerationRequest

NOT_EXACT = (
    "an exact request cannot be profiled with this model: profiled requests run alone, "
    "and a row alone is not bitwise equal to a row in a batch"
)
NO_ADAPTERS = (
    "a request with an adapter cannot be profiled with this model: profiled requests run on onnxruntime-genai's "
    "Generator, which has no adapters for models that take images"
)


class RunnerPair:
    """Places each sequence on one of a model's two runners. Without a batch, both are the generator's."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.main = loaded.main
        self.generator = loaded.generator

    def of(self, sequence: Sequence) -> Runner:
        """The runner that a running sequence is on."""
        return self.main if sequence.batched else self.generator

    def for_request(self, request: GenerationRequest) -> Runner:
        """The runner of a request while it is not profiled."""
        return self.main if request.adapter is None or self.main.abilities.adapters else self.generator

    def _is_for_batch(self, sequence: Sequence) -> bool:
        return self.for_request(sequence.request) is self.loaded.batch

    def reuses_past(self, request: GenerationRequest) -> bool:
        """Whether a request may reuse a cached prefix."""
        caches = self.for_request(request).abilities.caches_prefixes
        return caches and request.cache_prompt and not request.prompt_logprobs

    def no_profile(self, *sequences: Sequence) -> str | None:
        """Why these sequences cannot move to the generator's runner, where each runs alone; None if they can."""
        if self.loaded.why_no_profile:
            return self.loaded.why_no_profile
        if self.main.abilities.pools:
            return "a model for embeddings or reranking cannot be profiled"
        if self.generator.abilities.name == self.main.abilities.name:
            return None  # they have the same passes there
        if not self.generator.abilities.adapters and any(sequence.adapter is not None for sequence in sequences):
            return NO_ADAPTERS
        moving = [sequence for sequence in sequences if self._is_for_batch(sequence)]
        if not self.main.abilities.exact and any(sequence.request.exact for sequence in moving):
            return NOT_EXACT
        return None

    def open(self, sequence: Sequence) -> None:
        """Begin a sequence. Raises RunnerFailed."""
        self._open_on(sequence, batched=self._is_for_batch(sequence) and not sequence.profile.is_on)

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
        if sequence.batched or not self._is_for_batch(sequence):
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
        if self.main.switches_at is None:
            return []
        return [s for s in sequences if s.batched and s.is_decoding and self.main.must_reopen(s)]

    def reopen(self, sequence: Sequence) -> None:
        """Begin a sequence of the batch again. Its tokens are read again, in chunks."""
        self.close(sequence)
        self._open_on(sequence, batched=True)

    def close(self, sequence: Sequence) -> None:
        """End a sequence and free what it holds."""
        if self.loaded.disk_cache is not None:
            self.loaded.disk_cache.cancel(sequence)
        if self.loaded.draft_model is not None:
            self.loaded.draft_model.close(sequence.id)
        self.of(sequence).close(sequence.id)

    def _open_on(self, sequence: Sequence, *, batched: bool) -> None:
        sequence.batched = batched
        sequence.by_library = batched and self.main.abilities.chooses
        sequence.num_read = self.of(sequence).open(sequence)
        if not sequence.num_produced and not sequence.num_pauses:
            sequence.num_cached = 0 if sequence.by_library else sequence.num_read
