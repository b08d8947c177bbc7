"""Which runner a sequence is on, and how it moves to the other one.

Most sequences run on the main runner, which is a batch where the model allows one. Next to it, onnxruntime-genai's
Generator runs what the batch cannot: sequences with an adapter, or, of onnxruntime-genai's own batch, those that are
profiled. A sequence that is profiled during its answer moves then, and its tokens are read again.
"""

from collections.abc import Iterable

from genai_server.engine.runners.base import Runner, run_pass
from genai_server.engine.runners.loaded_model import LoadedModel
from genai_server.engine.scheduling.scheduler_output import Step
from genai_server.engine.scores import Scores
from genai_server.engine.sequence import Sequence
from genai_server.messages.generation_request import GenerationRequest


class RunnerPair:
    """Places each sequence on one of a model's two runners, which may be the same."""

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
        """Whether the batch runs a sequence. onnxruntime-genai's own cannot profile."""
        may_stay = self.main.abilities.profiles or not sequence.profile.is_on
        return may_stay and self.for_request(sequence.request) is self.loaded.batch

    def reuses_past(self, request: GenerationRequest) -> bool:
        """Whether a request may reuse a cached prefix."""
        caches = self.for_request(request).abilities.caches_prefixes
        return caches and request.cache_prompt and not request.prompt_logprobs

    def open(self, sequence: Sequence) -> None:
        """Begin a sequence. Raises RunnerFailed."""
        sequence.batched = self._is_for_batch(sequence)
        sequence.by_library = sequence.batched and self.main.abilities.chooses
        sequence.profile.active = None
        sequence.num_read = self.of(sequence).open(sequence)
        if not sequence.num_produced and not sequence.num_pauses:
            sequence.num_cached = 0 if sequence.by_library else sequence.num_read

    def forward(self, step: Step) -> list[Scores]:
        """Run a step, whose sequences are all on one runner. Raises what the runner raises."""
        return run_pass(self.of(step.reads[0].sequence), step.reads)

    def misplaced(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """The running sequences that `reopen` moves to the runner that they need."""
        if self.main.abilities.profiles:
            return []
        # What the library chooses would not continue the same way behind a token, and a grammar would start again.
        stays = self.main.abilities.chooses
        return [
            sequence
            for sequence in sequences
            if sequence.batched != self._is_for_batch(sequence)
            and (sequence.batched or not stays or not sequence.num_produced)
        ]

    def outgrown(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """The sequences of the batch that have become too long for what its runner keeps of them."""
        if self.main.switches_at is None:
            return []
        return [s for s in sequences if s.batched and s.is_decoding and self.main.must_reopen(s)]

    def reopen(self, sequence: Sequence) -> None:
        """Begin a sequence again. Tokens without a cached prefix are read again, in chunks. Raises RunnerFailed."""
        self.close(sequence)
        self.open(sequence)

    def close(self, sequence: Sequence) -> None:
        """End a sequence and free what it holds."""
        if self.loaded.disk_cache is not None:
            self.loaded.disk_cache.cancel(sequence)
        if self.loaded.draft_model is not None:
            self.loaded.draft_model.close(sequence.id)
        self.of(sequence).close(sequence.id)
