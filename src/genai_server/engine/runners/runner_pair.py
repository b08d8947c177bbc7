"""Which runner a sequence is on, and how it moves to the other one.

Most sequences run on the main runner, which is a batch where the model allows one. Next to it, onnxruntime-genai's
Generator runs what the batch cannot: sequences with an adapter, where the batch takes none.
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
        """The runner that a request's sequences run on."""
        return self.main if request.adapter is None or self.main.abilities.adapters else self.generator

    def reuses_past(self, request: GenerationRequest) -> bool:
        """Whether a request may reuse a cached prefix."""
        caches = self.for_request(request).abilities.caches_prefixes
        return caches and request.cache_prompt and not request.prompt_logprobs

    def open(self, sequence: Sequence) -> None:
        """Begin a sequence. Raises RunnerFailed."""
        sequence.batched = self.for_request(sequence.request) is self.loaded.batch
        sequence.profile.active = None
        sequence.num_read = self.of(sequence).open(sequence)
        if not sequence.num_produced and not sequence.num_pauses:
            sequence.num_cached = sequence.num_read

    def forward(self, step: Step) -> list[Scores]:
        """Run a step, whose sequences are all on one runner. Raises what the runner raises."""
        return run_pass(self.of(step.reads[0].sequence), step.reads)

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
